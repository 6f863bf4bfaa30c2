//go:build race

package throttle_test

const raceEnabled = true

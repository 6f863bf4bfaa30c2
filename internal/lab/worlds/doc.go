// Package worlds has only tests. It draws worlds: fleets of processes that have limits, most of them shared, and what happens to
// these. It plays each in fake time, and checks what the documentation promises of every world.
//
// A seed is one world, and plays the same each time:
//
//	go test ./internal/lab/worlds -run TestWorlds -seed 17 -v
//
// prints it as text, with what was found, and, if that is a failure, the smallest world that still fails.
//
//   - world_test.go: what a world is, and how it is drawn. Each dimension has one entry in the table there.
//   - twists_test.go: what happens in a world. Each kind has a type that is drawn, played and printed, and says what it excuses.
//   - play_test.go, link_test.go, late_test.go: the fleet at work, its way to the store, and processes that stand still.
//   - check_test.go, and a file for each check: what must hold. The checks know the requests that were sent and rejected, and nothing of
//     the code that decided so.
//   - table_test.go: a table of fleets of several sizes and rates.
//   - shrink_test.go: how a world that fails is made smaller.
//
// A new finding is a new dimension, in most cases a new twist: a type with four methods and its entry in the table.
package worlds

// Package pagetest tests package throttlepage in a real browser, and takes the pictures in docs. It is a module of its own, so
// that nothing else depends on the driver of the browser.
//
//	go test . -pictures ../../docs -load 2m
package pagetest

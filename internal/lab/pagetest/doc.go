// Package pagetest tests package throttlepage in a real browser, and takes the pictures in docs.
//
//	go test . -pictures ../../../docs -load 2m
package pagetest

// Package hints has only tests: servers that report their limits as real ones do, and what clients get from them, in fake time.
//
//   - world_test.go: the servers, how each reports, and a run of clients that share one.
//   - limits_test.go: the limits of these servers.
//   - figures_test.go: what clients use of a limit, and how many of their requests are refused.
//   - promises_test.go: what the documentation promises of what servers reported.
package hints

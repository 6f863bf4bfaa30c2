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
//   - purse_test.go: fleets that share one limit, with costs of up to a whole burst, costs that are corrected in both directions, learned limits
//     and windows of a minute and a day, beside one process in memory.
//   - table_test.go: a table of fleets of several sizes and rates.
//   - shrink_test.go: how a world that fails is made smaller.
//
// A world has one to three limits: buckets, paces, sliding and fixed windows of 1 to 10 s, and slots, shared or of each process, of all
// requests or of each of up to five keys. It has one to three kinds of processes, 1 to 100 in all, which may join and leave, are at some
// distance from the store, and may set half to twice the limits' numbers. Their callers send one request after the other, at a rate or in
// bursts, which cost up to 5, and may have deadlines and maximum waits. There may be lost responses of the store, and a server with a limit of
// its own that refuses. Up to three twists happen: a hold, a roll-out, an outage, a lost state, a store that moves, a process that stands still
// or is killed, late timers, and refusals by mistake. Some processes may be of the release before for a time, as the store sees it.
//
// Worlds of 30 s have no calendar windows, no windows of a minute or longer, and no outages of more than 8 s. Slots whose state is lost are
// drawn in internal/limiter/slots_lost_test.go. Not drawn are learned limits and servers that report quotas in headers.
//
// A new finding is a new dimension, in most cases a new twist: a type with four methods and its entry in the table.
package worlds

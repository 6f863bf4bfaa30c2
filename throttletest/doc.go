// Package throttletest has a server that enforces rate limits as real APIs do, for tests of clients that keep within them.
//
//	func TestClient(t *testing.T) {
//		api := throttletest.Start(t,
//			throttletest.WithLimits(throttletest.TokenBucket(20, time.Second)),
//			throttletest.WithFaults(throttletest.Hang().OnRequests(7)))
//		// … send requests to api.URL with api.Client() …
//		most, err := api.MaxAccepted("bucket", time.Second)
//	}
//
// # Ways to run it
//
// The same options run the same server in four ways:
//
//   - [New] and [Start] serve on a loopback socket, in real time: for example programs, for clients in other processes, and
//     for whatever tests the HTTP stack itself. A socket does not work in a bubble of testing/synctest.
//   - The same with [WithInMemory], inside a bubble of testing/synctest: real HTTP over connections in memory, and time
//     that stands still until all goroutines wait, so a test of an hour takes a moment and instants are exact to the
//     nanosecond. Make the server inside the bubble, with Start or with a deferred Close: a bubble ends only after all of
//     its goroutines.
//   - [Handler.Direct] calls the Handler without any connection: for simulations of hundreds of thousands of requests, in
//     a bubble or not.
//   - [NewHandler] alone is for any http.Server, or for an httptest.Server with TLS. The Close of that server waits for requests that
//     travel, are served or hang, until their clients cancel them.
//
// # How a request flows
//
//  1. The request travels for half of [WithRoundTrip]. When it arrives, the server gives it a number.
//  2. A fault may happen to it ([WithFaults]).
//  3. All limits accept it together, at one instant, or refuse it.
//  4. An accepted request waits for a worker ([WithWorkers]) and is served ([WithServiceTime]). [WithHandler] writes the
//     response.
//  5. A refused request takes [WithRefusalTime]. [WithStatus], [WithRetryAfter] and [WithFields] set what the response says;
//     [WithRounding] and [WithLateResets] make its times less exact.
//  6. The response travels for the other half of WithRoundTrip.
//
// [InFlight] counts a request from its acceptance until the Handler has returned. A client may read the last byte of a
// response of more than 2 KiB just before that.
//
// [Handler.SetRate] and [Handler.SetLimit] change the limits while the server runs, and [Handler.Stall] stops it for a while.
//
// A Transport waits for a Retry-After and for a random time longer, up to a tenth of it and at most a second. So a test of it asserts
// a range there.
//
// # Imitating real servers
//
// These options imitate common servers, here with 50 requests per second each:
//
//	nginx, limit_req       LeakyBucket(50, time.Second, Resolution(time.Millisecond), Status(503)), WithRetryAfter(NoRetryAfter);
//	                       "burst=20 nodelay" is Burst(20), "burst=20" is Burst(20) and Delay(0)
//	nginx, limit_conn 4    InFlight(4, Status(503))
//	HAProxy, stick table   SlidingWindow(50, time.Second) with CountRefused() where tracking comes before the rule that denies,
//	                       WithRetryAfter(NoRetryAfter); "tarpit" is WithRefusalTime(Constant(timeout)) and WithStatus(500)
//	HAProxy, maxconn 4     WithWorkers(4, 1000)
//	express-rate-limit     FixedWindow(50, time.Second, FromFirstRequest()), WithFields(Draft6), Draft7 or Draft
//	@fastify/rate-limit    the same window, WithFields(XDelta)
//	Flask-Limiter          the same window, WithFields(XEpoch), WithRetryAfterAlways(), WithLateResets(time.Second),
//	                       WithRounding(RoundDown); its moving window is SlidingWindow and WithFullResets()
//	INCR and EXPIRE        FixedWindow(50, time.Second, Elastic(), CountRefused()): every request prolongs the window
//
// Vendors of language models differ in what they charge a request, and when:
//
//	estimate kept          TokenBucket(200_000, time.Minute, Name("tokens"), Cost(estimate)), WithFields(OpenAI), WithFullResets()
//	settled at the end     the same, and Charge(r, "tokens", used-estimate) at the end of the handler
//	as produced            TokenBucket(80_000, time.Minute, Name("output-tokens"), Cost(one)), WithFields(Anthropic), and
//	                       Charge(r, "output-tokens", n) as the handler writes
//	nothing reported       FixedWindow, WithRetryAfter(NoRetryAfter), and WithRefusal, which writes Refusal.Wait into a body
//	each model by itself   Key(func(r *http.Request) string { … BodyOf(r) … }), or of the path
//
// Random values depend only on [WithSeed] and on the number of the request.
package throttletest

// Package headers tells what a response says about rate limits: whether the request was limited, for how long to stay away,
// and what is left of which quota until when. It reads Retry-After and its relatives, the fields of the IETF draft (all of
// its versions), and the many RateLimit-* and X-RateLimit-* headers, whose names don't fix a unit.
//
//	signal := headers.Parse(resp.StatusCode, resp.Header, time.Now())
//	if wait, known := signal.Wait.Get(); signal.Limited && known { … }
//
// [Parse] keeps to readings that hold for every server. What holds for one API alone is a [Dialect]: there are presets
// ([GitHub], [OpenAI], …), [Auto] picks among them by host, and a [Reader] brings several together. Some dialects ask for
// the first [BodyBytes] of the body, where the API says the truth nowhere else.
//
// Everything is pure and total: no clock, no I/O, no panic, and no value that could hurt, whatever the bytes. No duration is
// negative or longer than [Ceiling]. What is absent or malformed is unknown, which is not zero; of a Retry-After that is too
// long to be true, Ceiling is left, so that a caller who won't wait so long refuses, and nobody retries at once.
package headers

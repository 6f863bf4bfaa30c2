// Package headers reads what a response says about rate limits: whether the request was limited, how long to wait, and how
// much of each quota is left until when. It reads Retry-After and similar headers, the fields of the IETF draft in all of its
// versions, and the many RateLimit-* and X-RateLimit-* headers, whose names do not determine a unit.
//
//	signal := headers.Parse(resp.StatusCode, resp.Header, time.Now())
//	if wait, known := signal.Wait.Get(); signal.Limited && known { … }
//
// [Parse] uses only readings that hold for every server. What holds for a single API is a [Dialect]. There are presets
// ([GitHub], [OpenAI], …); [Auto] selects a preset by host, and a [Reader] combines several. Some dialects need the first
// [BodyBytes] of the body, because the API reports its limits nowhere else.
//
// All functions are pure and total: no clock, no I/O, and no panic or harmful value, whatever the bytes. No duration is negative
// or longer than 366 days. Absent and malformed values are unknown, which is not zero. A Retry-After that is implausibly long is
// reduced to 366 days, so that it never turns into an immediate retry.
package headers

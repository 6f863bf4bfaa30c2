package overload

import (
	"net/http"
	"time"
)

// Scenes returns the servers of the table of the benchmarks' results. Each has 128 callers.
func Scenes() []Scene {
	workers := func(service float64, giveUp time.Duration) func() Server {
		return func() Server { return NewWorkers(10, Half(service), 0, giveUp) }
	}
	failing := func(status int, from, soft float64) func() Server {
		return func() Server { return &Failing{PerSecond: from, Soft: soft, Status: status, Service: 0.04} }
	}
	return []Scene{
		{Name: "queue: 10 workers, 50 ms", Capacity: 200, New: workers(0.05, 0)},
		{Name: "the same, 504 after 400 ms of waiting", Capacity: 200, New: workers(0.05, 400*time.Millisecond)},
		{Name: "500 above 200 a second", Capacity: 200, New: failing(http.StatusInternalServerError, 200, 0)},
		{Name: "503 above 200 a second", Capacity: 200, New: failing(http.StatusServiceUnavailable, 200, 0)},
		{Name: "500 for none of 150 to all of 450 a second", Capacity: 150, New: failing(http.StatusInternalServerError, 150, 300)},
		{Name: "queue: 10 workers, 2 s", Capacity: 5, Length: 1200, From: 240, New: workers(2, 0)},
	}
}

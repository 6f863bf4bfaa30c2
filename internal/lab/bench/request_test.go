package bench

import (
	"runtime"
	"testing"
)

// goroutines is how many press where something is measured under contention.
const goroutines = 64

// BenchmarkRequest is what a request costs that need not wait, with a server that takes no time.
func BenchmarkRequest(b *testing.B) {
	for _, c := range clients {
		b.Run("goroutines=1/impl="+c.name, func(b *testing.B) {
			t, req := c.wrap(b, instant{}), request(b, "http://api.example.com")
			b.ReportAllocs()
			for b.Loop() {
				if err := send(t, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	for _, c := range clients {
		b.Run("goroutines=64/impl="+c.name, func(b *testing.B) {
			t := c.wrap(b, instant{})
			b.ReportAllocs()
			b.SetParallelism(goroutines / runtime.GOMAXPROCS(0))
			b.RunParallel(func(pb *testing.PB) {
				req := request(b, "http://api.example.com")
				for pb.Next() {
					if err := send(t, req); err != nil {
						b.Error(err)
						return
					}
				}
			})
		})
	}
}

package order

import (
	"fmt"
	"testing"
)

// benchWorld has n requests wait under one point of which few are granted.
func benchWorld(n int, last func(i int) Instant) (*Order, *Point, *fake) {
	f := &fake{step: 1000, most: 1}
	o, p := new(Order), &Point{Payer: f}
	for i := range n {
		w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Last: last(i)}
		o.Next(0)
		o.Join(w, 0)
	}
	o.Next(0)
	return o, p, f
}

func endless(int) Instant { return Never }

func BenchmarkJoinAndLeave(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			o, p, _ := benchWorld(n, endless)
			w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Last: Never}
			b.ReportAllocs()
			for b.Loop() {
				o.Plan(w, 0)
				o.Join(w, 0)
				o.Next(0)
				o.Leave(w)
				o.Next(0)
			}
		})
	}
}

func BenchmarkNext(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			o, p, f := benchWorld(n, endless)
			for b.Loop() {
				w, due := o.Next(o.Wake())
				f.pay(due, 1)
				o.Next(due)
				w.At, w.Costs = []*Point{p}, []int64{1}
				o.Join(w, due)
			}
		})
	}
}

// BenchmarkOverdue is of a slower rate that rejects one request in a hundred, where the Last of each is just enough.
func BenchmarkOverdue(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			rejected := 0
			for b.Loop() {
				b.StopTimer()
				o, p, f := benchWorld(n, func(i int) Instant { return int64(i+1) * 1000 })
				f.step = 1010
				b.StartTimer()
				o.Check(p)
				for !o.IsChecked() {
					work := 1 << 30
					for w, _, _ := o.Overdue(0, &work); w != nil; w, _, _ = o.Overdue(0, &work) {
						o.Leave(w)
						rejected++
					}
				}
				o.Next(0)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(rejected), "ns/rejected")
			b.ReportMetric(float64(rejected)/float64(b.N), "rejected/op")
		})
	}
}

// BenchmarkChange is of a change that rejects none.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		b.Run(fmt.Sprint("n=", n), func(b *testing.B) {
			o, p, f := benchWorld(n, func(i int) Instant { return int64(i+1)*1000 + int64(second) })
			for b.Loop() {
				f.step = 2001 - f.step
				o.Check(p)
				work := 2000
				if w, _, _ := o.Overdue(0, &work); w != nil || !o.IsChecked() {
					b.Fatal("a request is rejected")
				}
				o.Next(0)
			}
		})
	}
}

// BenchmarkPlan is of a request that would join where others wait in many lines under one point, or in one line that has many
// gates. Callers take turns there, or not.
func BenchmarkPlan(b *testing.B) {
	for _, n := range []int{1_000, 10_000, 100_000} {
		for _, callers := range []int{0, 1, 1000} {
			for _, gates := range []bool{false, true} {
				b.Run(fmt.Sprintf("callers=%d/gates=%t/n=%d", callers, gates, n), func(b *testing.B) {
					o, p := new(Order), &Point{Payer: &fake{step: 1000, most: 1}, Fair: callers > 0}
					request := func(caller int) *Waiter {
						other := &Point{Payer: &fake{kind: slots, most: 9}}
						w := &Waiter{At: []*Point{p}, Costs: []int64{1}, Caller: fmt.Sprint(caller), Weight: 1, Last: Never - 1}
						if gates {
							w.Gate = other
						} else {
							w.At, w.Costs = append(w.At, other), append(w.Costs, 1)
						}
						return w
					}
					for i := range n {
						o.Join(request(i%max(1, callers)), 0)
						o.Next(0)
					}
					w := request(callers + 1)
					w.Gate = nil
					for b.Loop() {
						o.Plan(w, 0)
					}
				})
			}
		}
	}
}

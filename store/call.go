package store

import (
	"fmt"
	"time"
)

// A Call is a [Part] in the units in which a store counts: integers below 2^53, with instants and durations in µs.
type Call struct {
	Kind   Kind
	Units        // of a window: N tokens in Per µs, with a Tick of 1; of Slots: N, with a Tick and a Per of 1
	Origin int64 // an instant at which a Fixed window begins

	Windows [4]int64 // when those of a Calendar begin

	Need, Due, Want, Ahead int64 // Due: the number of tokens of Need that must be due within Ticks
	Horizon, Ticks         int64 // Horizon: how many units may be promised; Ticks: of a window, Within
	Owe, Hold, Since, Held int64 // Hold: -1 ends it
	Holder                 string
	Back                   []Return
	Replace, Whole         bool
	Queue                  bool
	Queued                 int64

	ns      int64 // the call came so much later than the whole µs at which it is decided
	differs bool  // Units are those of a stricter rule
}

// Check returns an error, in whose chain ErrSetup is, if the ask names a budget twice: each part alone could be granted, but not both.
func (a *Ask) Check() error {
	for i := range a.Parts {
		b := &a.Parts[i].Budget
		for k := range i {
			if other := &a.Parts[k].Budget; other.account() == b.account() {
				return fmt.Errorf("%w: limit %q: parts %d and %d of one ask are for the same %s and key %q: ask for the sum", ErrSetup, b.Limit, k, i, b.Kind, b.Key)
			}
		}
	}
	return nil
}

// NewCall converts a part. If no store can grant it, the error has ErrSetup in its chain.
func NewCall(p *Part) (Call, error) {
	b := &p.Budget
	if err := b.check(); err != nil {
		return Call{}, fmt.Errorf("%w: limit %q: %w", ErrSetup, b.Limit, err)
	}
	c := Call{Kind: b.Kind, Need: p.Need, Due: p.Need, Holder: p.Holder, Replace: p.Replace, Whole: p.Whole, Queue: p.Queue, Queued: clamp(p.Queued, mostUnits)}
	most, count := b.Most(), int64(mostUnits) // most: the bound of Need; count: the bound of every other number of tokens
	switch b.Kind {
	case Bucket, Pace:
		u, err := b.units()
		if err != nil {
			return Call{}, fmt.Errorf("%w: limit %q: %w", ErrSetup, b.Limit, err)
		}
		c.Units = u
		count = mostUnits / u.Per
		if b.Kind == Pace {
			c.Due = min(1, p.Need)
		}
		ticks := span(p.Horizon, mostAhead) / u.Tick
		c.Horizon = min(mulSat(ticks, u.N), mostUnits)
		c.Ticks = min(max(ticks, span(p.Within, mostAhead)/u.Tick), mostUnits/u.N)
	case Sliding, Fixed, Calendar:
		c.N, c.Tick = most, 1
		c.Per, c.Origin = b.windows()
		c.Ticks = span(p.Within, mostAhead)
		if b.Kind == Calendar {
			for i, begins := range b.Windows {
				if i > 0 && !begins.After(b.Windows[i-1]) {
					return Call{}, fmt.Errorf("%w: limit %q: a window that begins at %v cannot follow one that begins at %v", ErrSetup, b.Limit, begins, b.Windows[i-1])
				}
				c.Windows[i] = begins.UnixMicro()
			}
		}
	case Slots:
		c.N, c.Per, c.Tick = most, 1, 1
		if len(p.Holder) == 0 || len(p.Holder) > 64 {
			return Call{}, fmt.Errorf("%w: limit %q: a holder of %d bytes is not from 1 to 64 bytes long", ErrSetup, b.Limit, len(p.Holder))
		}
	}
	if p.Need < 0 || p.Need > most {
		return Call{}, fmt.Errorf("%w: limit %q can grant at most %d tokens, and %d are needed", ErrSetup, b.Limit, most, p.Need)
	}
	c.Want = max(c.Need, min(p.Want, count))
	c.Ahead, c.Owe, c.Held = clamp(p.Ahead, count), clamp(p.Owe, count), clamp(p.Held, count)
	c.Since = span(p.Since, MaxSince)
	if c.Hold = span(min(p.Hold, mostHold)+time.Microsecond-1, mostHold); p.Hold < 0 {
		c.Hold = -1
	}
	for _, r := range p.Back {
		if r.Tokens > 0 && b.Kind != Slots {
			c.Back = append(c.Back, Return{min(r.Tokens, count), r.Lease})
		}
	}
	return c, nil
}

// Most returns the largest Need that can be granted: the burst, n or number of slots; of a Pace, the tokens that a store can count.
func (b *Budget) Most() int64 {
	switch b.Kind {
	case Bucket:
		return b.Burst
	case Pace:
		if u, err := b.units(); err == nil {
			return mostUnits / u.Per
		}
	}
	return min(b.N, mostUnits)
}

// Check returns an error if the budget is invalid, or too large for a store.
func (b *Budget) Check() error {
	err := b.check()
	if err == nil && (b.Kind == Bucket || b.Kind == Pace) {
		_, err = b.units()
	}
	return err
}

// check returns an error if the budget is invalid.
func (b *Budget) check() error {
	switch {
	case b.Kind != Bucket && b.Kind != Pace && b.Kind != Sliding && b.Kind != Fixed && b.Kind != Calendar && b.Kind != Slots:
		return fmt.Errorf("the kind %q is unknown", b.Kind)
	case b.N <= 0:
		return fmt.Errorf("n of %d is not positive", b.N)
	case b.Per <= 0 && b.Kind != Slots:
		return fmt.Errorf("a period of %v is not positive", b.Per)
	case b.Kind == Bucket && b.Burst <= 0:
		return fmt.Errorf("a burst of %d is not positive", b.Burst)
	case b.Kind == Bucket && (b.Initial < 0 || b.Initial > b.Burst):
		return fmt.Errorf("an initial level of %d is not from 0 to the burst of %d", b.Initial, b.Burst)
	}
	return nil
}

// window returns the window of a Fixed limit or a Calendar at an instant.
func (c *Call) window(now int64) (begins, ends int64) {
	first, last := c.Windows[0], c.Windows[len(c.Windows)-1]
	switch {
	case c.Kind == Fixed:
		begins = now - floorMod(now-c.Origin, c.Per)
		return begins, begins + c.Per
	case now < first: // the clock of the process is more than a window ahead
		begins = now - floorMod(now-first, c.Per)
		return begins, min(begins+c.Per, first)
	case now >= last: // behind
		begins = now - floorMod(now-last, c.Per)
		return begins, begins + c.Per
	}
	i := 1
	for now >= c.Windows[i] {
		i++
	}
	return c.Windows[i-1], c.Windows[i]
}

// span returns d in µs, 0 up to most.
func span(d, most time.Duration) int64 { return int64(max(0, min(d, most)) / time.Microsecond) }

func clamp(n, most int64) int64 { return max(0, min(n, most)) }

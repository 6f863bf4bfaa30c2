package lease

import (
	"fmt"
	"time"
)

// A Call is a [Part] as the numbers by which a store counts: integers below 2^53, with instants and durations in µs.
type Call struct {
	Kind   Kind
	Units        // of a window: N tokens in Per µs, with a Tick of 1; of Slots: N, with a Tick and a Per of 1
	Origin int64 // an instant at which a Fixed window begins

	Need, Due, Want, Ahead int64 // Due: the number of tokens of Need that must be due within Ticks
	Horizon, Ticks         int64 // Horizon: how many units may be promised
	Owe, Hold, Since, Held int64 // Hold: -1 ends it
	Holder                 string
	Back                   []Return
	Replace                bool

	differs bool // Units are those of a stricter rule
}

// NewCall returns p as numbers. The error, in whose chain ErrSetup is, is for a part that no store can grant.
func NewCall(p *Part) (Call, error) {
	b := &p.Budget
	if err := b.check(); err != nil {
		return Call{}, fmt.Errorf("%w: limit %q: %w", ErrSetup, b.Limit, err)
	}
	c := Call{Kind: b.Kind, Need: p.Need, Due: p.Need, Holder: p.Holder, Replace: p.Replace}
	most, count := min(b.N, mostUnits), int64(mostUnits) // most: the bound of Need; count: the bound of every other number of tokens
	switch b.Kind {
	case Bucket, Pace:
		u, err := b.Units()
		if err != nil {
			return Call{}, fmt.Errorf("%w: limit %q: %w", ErrSetup, b.Limit, err)
		}
		c.Units = u
		most, count = b.Burst, mostUnits/u.Per
		if b.Kind == Pace {
			most, c.Due = count, min(1, p.Need)
		}
		ticks := span(p.Horizon, mostAhead) / u.Tick
		c.Horizon = min(mulSat(ticks, u.N), mostUnits)
		c.Ticks = min(max(ticks, span(p.Within, mostAhead)/u.Tick), mostUnits/u.N)
	case Sliding, Fixed:
		c.N, c.Tick = most, 1
		c.Per, c.Origin = b.micros()
	case Slots:
		c.N, c.Per, c.Tick = most, 1, 1
		if len(p.Holder) == 0 || len(p.Holder) > 64 {
			return Call{}, fmt.Errorf("%w: limit %q: a holder of %d bytes is not one of 1 to 64", ErrSetup, b.Limit, len(p.Holder))
		}
	}
	if p.Need < 0 || p.Need > most {
		return Call{}, fmt.Errorf("%w: limit %q cannot grant %d tokens, but at most %d", ErrSetup, b.Limit, p.Need, most)
	}
	c.Want = max(c.Need, min(p.Want, count))
	c.Ahead, c.Owe, c.Held = clamp(p.Ahead, count), clamp(p.Owe, count), clamp(p.Held, count)
	c.Since = span(p.Since, SinceMost)
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

// Check returns an error if the budget is invalid, or too large for a store.
func (b *Budget) Check() error {
	err := b.check()
	if err == nil && (b.Kind == Bucket || b.Kind == Pace) {
		_, err = b.Units()
	}
	return err
}

// check returns an error if the budget is invalid.
func (b *Budget) check() error {
	switch {
	case b.Kind != Bucket && b.Kind != Pace && b.Kind != Sliding && b.Kind != Fixed && b.Kind != Slots:
		return fmt.Errorf("the kind %q is not known", b.Kind)
	case b.N <= 0:
		return fmt.Errorf("n of %d is not positive", b.N)
	case b.Per <= 0 && b.Kind != Slots:
		return fmt.Errorf("a period of %v is not positive", b.Per)
	case b.Kind == Bucket && b.Burst <= 0:
		return fmt.Errorf("a burst of %d is not positive", b.Burst)
	case b.Kind == Bucket && (b.Initial < 0 || b.Initial > b.Burst):
		return fmt.Errorf("an initial level of %d is not one of 0 to the burst of %d", b.Initial, b.Burst)
	}
	return nil
}

// span returns d in µs, 0 up to most.
func span(d, most time.Duration) int64 { return int64(max(0, min(d, most)) / time.Microsecond) }

func clamp(n, most int64) int64 { return max(0, min(n, most)) }

package quota

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/httpthrottle/throttle/internal/meter"
	"github.com/httpthrottle/throttle/internal/server"
)

// tagged are traits for tests: the model, the length of the path, and its segments.
type tagged []uint64

func (t tagged) Trait(n int) uint64 {
	if n < len(t) {
		return t[n]
	}
	return 0
}

func (t tagged) String() string { return "GET /tagged" }

// responds has a request leave, and its response come, as the registry sees both.
func responds(r *Registry, k *Key, now meter.Instant, h *Hints) *Gate {
	g := r.Gate(k, now)
	n := g.Take(now, now, 1, false)
	r.Apply(g, &Report{Reading: h.Read(now), Sent: now, Number: n, Accepted: !h.Limited, Done: !h.Limited, Traits: k.Traits}, now)
	return g
}

// counts are hints of an unnamed quota.
func counts(limit, left int64, reset time.Duration) *Hints {
	q := until(Unnamed, left, reset)
	q.Limit = limit
	return &Hints{Quotas: []QuotaHint{q}}
}

func TestRequestsWithOtherLimitsAreCountedApart(t *testing.T) {
	r := NewRegistry(10, 1)
	small := responds(r, at("h", 1), 0, counts(25, 0, time.Minute))
	only(t, small.Account).early = true
	large := responds(r, at("h", 2), 0, counts(600, 599, time.Minute))
	require.NotSame(t, small.Account, large.Account)
	require.True(t, only(t, small.Account).early, "of no mixture")
	require.Equal(t, 60*second, small.Ready(0, 0, 1))
	require.Zero(t, large.Ready(0, 5, 1))
	third := responds(r, at("h", 3), 0, counts(600, 598, time.Minute))
	require.Same(t, large.Account, third.Account, "the limit, the end and the count fit")
	other := responds(r, at("h", 4), 0, counts(600, 100, time.Minute))
	require.NotSame(t, large.Account, other.Account, "the count does not")
	require.NotSame(t, small.Account, other.Account)
	require.Empty(t, r.check(0))
}

func TestALimitThatChangesIsNoOtherQuota(t *testing.T) {
	r := NewRegistry(10, 1)
	k := at("h", 1)
	k.Traits = tagged{}
	g := responds(r, k, 0, counts(100, 99, time.Minute))
	a := g.Account
	for i := range int64(8) {
		require.Same(t, g, responds(r, k, i, counts(200, 190-i, time.Minute)))
	}
	require.Same(t, a, g.Account)
	require.EqualValues(t, 200, only(t, a).limit)
	require.Nil(t, g.trial)
}

// Two quotas under one first segment: what differs between the requests that they are reported for is what the server counts by.
func TestAFamilyIsDividedByWhatDiffers(t *testing.T) {
	for name, c := range map[string]struct{ small, large func(i uint64) tagged }{
		"the model":               {func(uint64) tagged { return tagged{1, 3, 7} }, func(uint64) tagged { return tagged{2, 3, 7} }},
		"the length of the path":  {func(i uint64) tagged { return tagged{0, 2, i} }, func(i uint64) tagged { return tagged{0, 3, i} }},
		"a segment between names": {func(i uint64) tagged { return tagged{0, 4, i, 5} }, func(i uint64) tagged { return tagged{0, 4, i + 100, 6} }},
		"a segment, all others":   {func(i uint64) tagged { return tagged{0, 4, i, 5} }, func(i uint64) tagged { return tagged{0, 4, i, 6 + i} }},
	} {
		t.Run(name, func(t *testing.T) {
			r := NewRegistry(50, 1)
			small, large := at("h", 1), at("h", 1)
			lefts, leftl := int64(25), int64(600)
			var x, y *Gate
			for i := range uint64(20) {
				small.Traits, large.Traits = c.small(i), c.large(i)
				lefts, leftl = max(0, lefts-1), leftl-1
				x = responds(r, small, 0, counts(25, lefts, time.Minute))
				y = responds(r, large, 0, counts(600, leftl, time.Minute))
			}
			require.NotSame(t, x.Account, y.Account)
			require.EqualValues(t, 25, only(t, x.Account).limit)
			require.EqualValues(t, 600, only(t, y.Account).limit)
			require.Empty(t, r.check(0))
		})
	}
}

// While callers go through the items one after the other, the item differs whenever the part does. Later only the part decides, so the
// item no longer divides the family; if it is found again, both do.
func TestATraitReplacesThoseThatMayHaveDifferedWithItByChance(t *testing.T) {
	const family, item, part = 1, 2, 3
	s := NewServer(1)
	for _, c := range []struct {
		trait int
		by    uint8
	}{{item, 1 << item}, {part, 1 << part}, {item, 1<<item | 1<<part}, {4, 1 << 4}, {part, 1<<part | 1<<4}} {
		s.refine(family, c.trait)
		require.Equal(t, c.by, s.finer[family].by)
	}
	require.EqualValues(t, 1<<item|1<<part|1<<4, s.finer[family].found)
}

// Where no more families can be divided, a trial that has found a trait ends as one that has found none.
func TestATrialEndsAlsoWhereNoMoreFamiliesCanBeDivided(t *testing.T) {
	r := NewRegistry(50, 1)
	k := at("h", 1)
	g := responds(r, k, 0, counts(600, 599, time.Hour))
	for family := range uint64(maxFiner) {
		g.Account.server.refine(family+2, traitModel)
	}
	for i := range int64(500) {
		k.Traits = tagged{uint64(i % 2), 3, 7}
		require.Same(t, g, responds(r, k, i, counts([]int64{25, 600}[i%2], 20, time.Hour)))
	}
	require.NotContains(t, g.Account.server.finer, k.Family)
	require.GreaterOrEqual(t, g.tries[ofLimits], int8(2))
	require.Empty(t, r.check(0))
}

// Requests come back one by one, so counts rise now and then. Trials that find nothing become rare, but a server that begins to count by
// model is noticed after any number of them.
func TestATrialThatFindsNothingDelaysTheNext(t *testing.T) {
	r := NewRegistry(50, 1)
	k := at("h", 1)
	var begun []int64
	for i := range int64(4000) {
		k.Traits = tagged{uint64(i % 2), 2, 7}
		before := r.Find(k, i*second)
		g := responds(r, k, i*second, counts(1000, 500+i*37%100, time.Hour))
		if g.trial != nil && (before == nil || g.trial.n == 1) {
			begun = append(begun, g.own.sent)
		}
	}
	require.Equal(t, []int64{2, 128, 256, 512, 1024, 2048}, begun)
	for i := range int64(20) {
		k.Traits = tagged{uint64(i % 2), 2, 7}
		responds(r, k, 4000*second, counts(100+i%2*200, 90-i/2, time.Hour))
	}
	require.EqualValues(t, 1<<traitModel, r.hosts["h"].finer[k.Family].by)
}

// Once a family is divided, one request may ask whether an end concerns its part, unless the last response has shown that it does.
func TestAPartOfWhichNothingIsLeftDoesNotAsk(t *testing.T) {
	r := NewRegistry(50, 1)
	k := at("h", 1)
	gate := func(model uint64) *Gate {
		k.Traits = tagged{model, 2, 7}
		return r.Gate(k, second)
	}
	var parts []*Gate
	for i := int64(0); parts == nil; i++ {
		whole, h := gate(1), counts(25, 0, time.Minute)
		if i%2 == 0 {
			whole, h = gate(2), counts(600, 599-i, time.Minute)
		}
		rep := &Report{Reading: h.Read(second), Sent: second, Number: whole.Take(second, second, 1, false), Accepted: true, Done: true, Traits: k.Traits}
		parts = r.Judge(whole, rep, second).Parts
		r.Apply(whole, rep, second)
	}
	small, large := gate(1), gate(2)
	require.NotSame(t, small, large)
	require.Subset(t, []*Gate{small, large}, parts)
	require.True(t, large.mayAsk())
	require.False(t, small.mayAsk())
	require.Empty(t, r.check(second))
}

// Two models have quotas of their own, and then the server counts the requests for each by region. What is left of the quota of the
// model counts for its new parts until their responses show more, not what is left of that of the other.
func TestAPartBeginsInTheAccountOfWhatIsDivided(t *testing.T) {
	for model := range int64(2) {
		r := NewRegistry(50, 1)
		key := func(model int64, region uint64) *Key {
			k := at("h", 1)
			k.Traits = tagged{uint64(model) + 1, region}
			return k
		}
		limit := func(model int64) int64 { return 100 + 200*model }
		for i := range int64(20) {
			responds(r, key(i%2, 0), i, counts(limit(i%2), 90-i/2, time.Minute))
		}
		other := responds(r, key(1-model, 0), 20, counts(limit(1-model), 0, time.Minute))
		whole := r.Find(key(model, 0), 20)
		require.NotSame(t, other.Account, whole.Account)
		var parts []*Gate
		for i := int64(0); parts == nil; i++ {
			k, left := key(model, uint64(7+i%2)), 70-i/2-i%2*40
			rep := &Report{Reading: counts(limit(model), left, time.Minute).Read(20), Sent: 20, Number: whole.Take(20, 20, 1, false), Accepted: true, Done: true, Traits: k.Traits}
			parts = r.Judge(whole, rep, 20).Parts
			r.Apply(whole, rep, 20)
		}
		third := r.Part(whole, tagged{uint64(model) + 1, 9}, 20)
		require.NotContains(t, parts, third)
		for _, part := range append(parts, third) {
			require.NotSame(t, whole, part)
			require.Same(t, whole.Account, part.Account)
			requireReady(t, part, 20, 20)
		}
		require.Empty(t, r.check(20))
	}
}

// A family that is divided by another trait than before has no gate of the parts before, though the two traits have the same values.
func TestWhatATraitIsOfTellsGatesApart(t *testing.T) {
	r := NewRegistry(50, 1)
	k := at("h", 1)
	k.Traits = tagged{5, 5}
	s := responds(r, k, 0, counts(100, 90, time.Minute)).Account.server
	var kinds []uint64
	for n := range 2 {
		s.finer = map[uint64]finer{k.Family: {by: 1 << n}}
		kinds = append(kinds, s.kind(k))
	}
	require.NotEqual(t, kinds[0], kinds[1])
}

// What two quotas together have shown of a rate is the rate of neither.
func TestAMixtureOfQuotasIsForgottenOnceItIsDivided(t *testing.T) {
	r := NewRegistry(50, 1)
	k := at("h", 1)
	other := at("h", 2)
	for i := range int64(20) {
		k.Traits = tagged{uint64(i % 2), 2, 7}
		g := r.Find(k, i)
		if g != nil && r.hosts["h"].finer == nil {
			g.Account.first.known = true
			only(t, g.Account).length = &length{open: second}
		}
		responds(r, k, i, counts(100+i%2*200, 90-i/2, time.Hour))
		responds(r, other, i, counts(7, 5, time.Hour)).Account.first.known = true
	}
	for _, a := range r.hosts["h"].accounts {
		if a == r.Find(other, 0).Account {
			require.True(t, a.first.known)
		} else {
			require.False(t, a.first.known)
			require.Nil(t, only(t, a).length)
		}
	}
	require.Len(t, r.hosts["h"].accounts, 3)
}

// A log of requests gets some back each time that the callers go on to the next item.
func TestCountsThatChangeWithTimeDoNotDivideAFamily(t *testing.T) {
	r := NewRegistry(50, 1)
	k := at("h", 1)
	left := int64(500)
	for i := range int64(400) {
		if left--; i%8 == 0 {
			left += 8
		}
		k.Traits = tagged{0, 3, uint64(1 + i/8), 7}
		responds(r, k, i*second, counts(1000, left, time.Hour))
	}
	require.Empty(t, r.hosts["h"].finer)
}

// Two credentials have quotas of the same size that end together: only the counts show that there are two.
func TestCountsThatRequestsOfOthersDoNotLowerAreApart(t *testing.T) {
	r := NewRegistry(10, 1)
	one, two := at("h", 1), at("h", 1)
	one.Credential, two.Credential = 1, 2
	var x, y *Gate
	for i := range int64(6) {
		for j := range int64(4) {
			x = responds(r, one, i*second, counts(5000, 4000-4*i-j, time.Hour-time.Duration(i)*time.Second))
		}
		if y == nil || x.Account == y.Account {
			only(t, x.Account).early = true
		}
		y = responds(r, two, i*second, counts(5000, 4999-i, time.Hour-time.Duration(i)*time.Second))
	}
	require.NotSame(t, x.Account, y.Account)
	require.False(t, only(t, x.Account).early, "the other may have shown it")
	require.Empty(t, r.check(5*second))
}

func TestCountsThatRequestsOfOthersLowerStayTogether(t *testing.T) {
	r := NewRegistry(10, 1)
	one, two := at("h", 1), at("h", 1)
	one.Credential, two.Credential = 1, 2
	left := int64(5000)
	for i := range int64(40) {
		k := one
		if i%5 == 0 || i%7 == 3 {
			k = two
		}
		left--
		responds(r, k, i*second, counts(5000, left, time.Hour-time.Duration(i)*time.Second))
	}
	require.Same(t, r.Find(one, 0).Account, r.Find(two, 0).Account)
}

// Requests that were never refused, nor reported a count, ask once whether a hold concerns them.
func TestAFamilyAsksOnceWhetherAHoldConcernsIt(t *testing.T) {
	for _, accepted := range []bool{true, false} {
		r := NewRegistry(10, 1)
		held := responds(r, at("h", 1), 0, refusing(time.Minute))
		a := held.Account
		require.Equal(t, a.Held(), held.Ready(1, 0, 1))
		g := r.Gate(at("h", 2), 1)
		require.EqualValues(t, 1, g.Ready(1, 0, 1))
		require.Equal(t, a.Held(), g.Ready(1, 1, 1), "only one")
		n := g.Take(1, 1, 1, false)
		require.Equal(t, a.Held(), g.Ready(2, 0, 1), "it is in flight")
		h := &Hints{}
		if !accepted {
			h = refusing(time.Minute)
		}
		r.Apply(g, &Report{Reading: h.Read(2), Sent: 1, Number: n, Accepted: accepted, Done: accepted}, 2)
		if accepted {
			require.NotSame(t, a, g.Account)
			require.EqualValues(t, 3, g.Ready(3, 5, 1))
		} else {
			require.Same(t, a, g.Account)
			require.Equal(t, a.Held(), g.Ready(3, 0, 1))
			third := r.Gate(at("h", 3), 3)
			n := third.Take(3, 3, 1, false)
			r.Apply(third, &Report{Reading: h.Read(4), Sent: 3, Number: n}, 4)
			require.Equal(t, a.Held(), r.Gate(at("h", 4), 5).Ready(5, 0, 1), "two asked and are held, so all are")
		}
		require.Empty(t, r.check(4))
	}
}

func TestAGroupHasSoManyAccounts(t *testing.T) {
	r := NewRegistry(1000, 1)
	for i := range int64(200) {
		responds(r, at("h", uint64(i)), i, counts(10+i, 1, time.Hour))
	}
	require.LessOrEqual(t, len(r.hosts["h"].accounts), maxAccounts)
	require.Empty(t, r.check(200))
}

// Two credentials had quotas of their own, until the server began to count them together; later it counts them separately again.
func TestQuotasAreJoinedAndDividedAsTheServerCounts(t *testing.T) {
	r := NewRegistry(10, 1)
	one, two := at("h", 1), at("h", 1)
	one.Credential, two.Credential = 1, 2
	at := meter.Instant(0)
	end := func() time.Duration { return time.Hour - time.Duration(at) }
	x := responds(r, one, at, counts(100, 99, end()))
	y := responds(r, two, at, counts(600, 599, end()))
	require.NotSame(t, x.Account, y.Account)

	left := int64(1000)
	both := func(n int) {
		for range n {
			at += second
			left--
			x = responds(r, one, at, counts(1000, left, end()))
			left--
			y = responds(r, two, at, counts(1000, left, end()))
		}
	}
	both(1)
	require.NotSame(t, x.Account, y.Account, "counts may be alike by chance")
	both(5)
	require.Same(t, x.Account, y.Account)
	require.Len(t, x.Account.group.accounts, 1, "nothing is kept of the other one")
	require.EqualValues(t, left, only(t, x.Account).left)
	require.Empty(t, r.check(at))

	for i := range int64(6) {
		at += second
		for j := range int64(4) {
			x = responds(r, one, at, counts(1000, 800-4*i-j, end()))
		}
		y = responds(r, two, at, counts(1000, 500-i, end()))
	}
	require.NotSame(t, x.Account, y.Account)
	require.EqualValues(t, 777, only(t, x.Account).left)
	require.EqualValues(t, 495, only(t, y.Account).left)
	require.Empty(t, r.check(at))
}

// A server that reports at random what a request is counted with makes the client keep no more than there is room for.
func TestAServerThatCountsAtRandom(t *testing.T) {
	for seed := range uint64(20) {
		rnd := rand.New(rand.NewPCG(seed, 0))
		r := NewRegistry(200, seed)
		left := [3]int64{1000, 1000, 1000}
		for i := range int64(2000) {
			k := at("h", rnd.Uint64N(4))
			k.Credential, k.Method = rnd.Uint64N(4), rnd.Uint64N(3)
			k.Traits = tagged{rnd.Uint64N(3), rnd.Uint64N(3), rnd.Uint64N(50)}
			n := rnd.IntN(3)
			left[n] = max(0, left[n]-rnd.Int64N(3))
			if rnd.IntN(200) == 0 {
				left[n] = 1000
			}
			h := counts([]int64{1000, 1000, 500}[rnd.IntN(3)], left[n], time.Duration(1+rnd.Int64N(3))*time.Minute)
			if left[n] == 0 {
				h.Limited = true
			}
			responds(r, k, i*second/10, h)
			require.LessOrEqual(t, len(r.hosts["h"].accounts), maxAccounts)
			require.LessOrEqual(t, r.size, 200*(maxSize/8))
		}
		require.Empty(t, r.check(200*second), "seed %d", seed)
	}
}

// Where the server counts some requests separately, no rate of all can be learned, so the accounts decide about refusals.
func TestAnAccountDecidesAboutItsPart(t *testing.T) {
	for _, parts := range []bool{false, true} {
		r := NewRegistry(10, 1)
		g := sent(r, at("h", 1), 0, 1)
		for range 8 {
			g.Account.lately.Add(0, 1, 0)
		}
		if parts {
			other := at("h", 2)
			other.Parts = "another"
			r.Gate(other, 0)
		}
		rep := Report{Reading: refusing(10 * time.Second).Read(second), Sent: second, Own: Own{Adaptive: true}}
		r.Apply(g, &rep, second)
		require.Equal(t, server.TooFast, rep.Verdict)
		require.Equal(t, parts, rep.Parts)
		require.Equal(t, !parts, rep.Own.Adaptive)
		requireHeld(t, second, 10*time.Second, g.Account.Held())
		require.Equal(t, parts, g.Account.first.known)
	}
}

// What is left of tokens falls by more than a request for each, which shows nothing of what else is counted together.
func TestACountInAnotherUnitBeginsNoTrial(t *testing.T) {
	for _, counted := range []bool{false, true} {
		r := NewRegistry(10, 1)
		k := at("h", 1)
		g := r.Gate(k, 0)
		for i := range int64(8) {
			now := i * second
			c := Figures{Name: "tokens", Limit: 100_000, Left: 100_000 - 2000*i, Reset: 60 * second, Counted: counted}
			rep := &Report{Reading: Reading{Hints: &Hints{}, figures: []Figures{c}}, Sent: now, Number: g.Take(now, now, 1, false), Accepted: true, Done: true, Traits: hashes{uint64(i%2) + 1}}
			r.Apply(g, rep, now)
		}
		require.Equal(t, counted, g.trial != nil)
	}
}

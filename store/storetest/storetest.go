// Package storetest tests implementations of [store.Store].
package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// Run tests the stores that newStore returns, one for each test. They may share a server, because each test uses its own keys. Run
// takes about 11 seconds, most of which it sleeps. With -short it takes one second and does not test that slots expire.
func Run(t *testing.T, newStore func(t *testing.T) store.Store) {
	for _, c := range Cases() {
		if c.Long && testing.Short() {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			c.Test(t, newStore(t))
		})
	}
}

// A Case is one test of [Run]. Use the cases directly to run each one in a testing/synctest bubble, in which t.Run panics.
type Case struct {
	Name string
	Long bool // it takes more than ten seconds
	Test func(t *testing.T, s store.Store)
}

// Cases returns the tests of [Run].
func Cases() []Case {
	return []Case{
		{"BucketGrantsItsBurstThenNothing", false, bucketGrantsItsBurst},
		{"NeedIsGrantedOrNothing", false, needOrNothing},
		{"WholeIsGrantedOrNeed", false, whole},
		{"AheadComesFromPlentyOnly", false, aheadFromPlenty},
		{"TokensArePromisedOneByOne", false, promises},
		{"HalfOfTheHorizonIsPromised", false, halfOfTheHorizon},
		{"NeedIsPromisedFurtherAhead", false, needFurtherAhead},
		{"PaceGrantsAnyCostWithItsFirstToken", false, pace},
		{"PaceIsPromisedWithinTheHorizon", false, pacePromises},
		{"PaceTakesTokensBack", false, paceBack},
		{"InitialIsWhatANewBucketHolds", false, initial},
		{"PartsAreGrantedTogetherOrNotAtAll", false, together},
		{"PartsAreGrantedInProportion", false, inProportion},
		{"PartThatWantsNothingGrantsNoMore", false, wantsNothing},
		{"UnusedTokensComeBack", false, comeBack},
		{"NothingComesBackTwice", false, notTwice},
		{"TokensThatWouldHaveBeenLostDoNotComeBack", false, notWhatWasLost},
		{"DebtIsBounded", false, debt},
		{"PromisesLeaveRoomForDebts", false, debtBesidePromises},
		{"HoldReachesEveryProcess", false, hold},
		{"RateThatReplacesAnotherCounts", false, retune},
		{"StricterOfTwoRulesCounts", false, stricter},
		{"PromisesAreByTheRuleThatCounts", false, promisesByStricter},
		{"SlidingWindowGrantsNInAnyPeriod", false, sliding},
		{"SlidingWindowTakesTokensBack", false, slidingBack},
		{"FixedWindowGrantsNPerWindow", false, fixed},
		{"FixedWindowIgnoresWhatWasLeasedBefore", false, fixedBack},
		{"CalendarWindowGrantsNPerWindow", false, calendar},
		{"CalendarWindowIsThatOfTheStoresClock", false, calendarOfOthers},
		{"WindowsGrantAheadFromPlentyOnly", false, windowAhead},
		{"NeedOfWindowsAndSlotsIsGrantedOrNothing", false, needOfOthers},
		{"DebtIsChargedInEveryKind", false, debtOfOthers},
		{"SlotsAreCountedByHolder", false, slots},
		{"SlotsPassToOthersThatWait", false, slotsPass},
		{"SlotsThatTheStoreDoesNotKnowStopGrants", false, slotsUnknown},
		{"SlotsExpireWithTheirHolder", true, slotsExpire},
		{"ProcessesAreCounted", false, processes},
		{"ProcessesAreCountedByTheirTimes", false, processesBySince},
		{"BudgetsAreApart", false, apart},
		{"AsksOfOneCallFollowEachOther", false, manyAsks},
		{"NeverMoreThanBurstPlusRate", false, neverMore},
		{"AsksAtOneTimeAreGrantedOnce", false, atOneTime},
		{"BudgetNamedTwiceIsASetupError", false, sameBudgetTwice},
		{"WrongBudgetIsASetupError", false, wrongBudget},
		{"ContextThatIsOverIsAnError", false, contextOver},
	}
}

// A suite asks a store for budgets with keys of its own.
type suite struct {
	*testing.T
	store store.Store
	key   string
}

func newSuite(t *testing.T, s store.Store) *suite {
	return &suite{t, s, t.Name() + time.Now().Format(" 15:04:05.000000000")}
}

func (s *suite) bucket(n int64, per time.Duration, burst int64) store.Budget {
	return store.Budget{Kind: store.Bucket, Limit: "bucket", Key: s.key, N: n, Per: per, Burst: burst, Initial: burst}
}

func (s *suite) budget(kind store.Kind, n int64, per time.Duration) store.Budget {
	b := store.Budget{Kind: kind, Limit: string(kind), Key: s.key, N: n, Per: per}
	if kind == store.Calendar {
		for i := range b.Windows {
			b.Windows[i] = time.Now().Add(time.Duration(i-1)*per - 10*time.Millisecond)
		}
	}
	return b
}

// ask asks for one ask of these parts and fails the test on an error.
func (s *suite) ask(parts ...store.Part) []store.LeasedPart {
	s.Helper()
	return s.asks(store.Ask{Parts: parts})[0].Parts
}

// one asks for one part.
func (s *suite) one(p store.Part) store.LeasedPart {
	s.Helper()
	return s.ask(p)[0]
}

func (s *suite) asks(asks ...store.Ask) []store.Lease {
	s.Helper()
	leases, err := s.store.Lease(s.Context(), asks)
	if err != nil {
		s.Fatalf("Lease: %v", err)
	}
	if len(leases) != len(asks) {
		s.Fatalf("%d leases for %d asks", len(leases), len(asks))
	}
	for i, l := range leases {
		if l.Err != nil {
			s.Fatalf("ask %d: %v", i, l.Err)
		}
		if len(l.Parts) != len(asks[i].Parts) {
			s.Fatalf("ask %d: %d parts leased of %d", i, len(l.Parts), len(asks[i].Parts))
		}
	}
	return leases
}

func (s *suite) tokens(what string, got store.LeasedPart, tokens, atOnce int64) {
	s.Helper()
	if got.Tokens != tokens || got.AtOnce != atOnce {
		s.Errorf("%s: %d tokens, %d of them at once; want %d, %d", what, got.Tokens, got.AtOnce, tokens, atOnce)
	}
}

// between checks a time that a store may round up to a whole µs.
func (s *suite) between(what string, got, least, most time.Duration) {
	s.Helper()
	if got < least || got > most+time.Microsecond {
		s.Errorf("%s is %v, want %v to %v", what, got, least, most)
	}
}

func wrongBudget(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	for _, b := range []store.Budget{
		{},
		{Kind: "else", N: 1, Per: time.Second},
		s.bucket(0, time.Second, 1),
		s.bucket(1, 0, 1),
		s.bucket(1, time.Second, 0),
		s.bucket(1, 1<<62, 1<<60),
		{Kind: store.Calendar, N: 1, Per: time.Hour},
	} {
		s.setupError(store.Part{Budget: b, Want: 1})
	}
	s.setupError(store.Part{Budget: s.bucket(1, time.Second, 1), Need: 2})
	s.setupError(store.Part{Budget: s.budget(store.Slots, 1, 0), Need: 1})
}

func contextOver(t *testing.T, st store.Store) {
	s := newSuite(t, st)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	p := store.Part{Budget: s.bucket(1, time.Hour, 5), Want: 5}
	if _, err := st.Lease(ctx, []store.Ask{{Parts: []store.Part{p}}}); err == nil {
		t.Error("no error")
	}
	s.tokens("afterwards", s.one(p), 5, 5)
}

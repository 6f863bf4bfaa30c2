package main

import (
	"errors"
	"strings"
	"testing"

	"github.com/httpthrottle/throttle/throttleredis"
)

func TestBadUsageIsAnError(t *testing.T) {
	for _, args := range [][]string{{}, {"show"}, {"reset"}, {"list", "a", "b"}, {"drop", "x"}, {"-nope", "list"}} {
		if err := run(t.Context(), args, &strings.Builder{}); !errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
	for _, args := range [][]string{{"-url", "nope", "list"}, {"-cluster", "-url", "nope", "list"}, {"-prefix", "", "list"}} {
		if err := run(t.Context(), args, &strings.Builder{}); err == nil || errors.Is(err, errUsage) {
			t.Errorf("%q: %v", args, err)
		}
	}
}

func TestBudgetsAreShownWithTheirHolders(t *testing.T) {
	var out strings.Builder
	err := write(&out, []throttleredis.BudgetState{
		{Name: "throttle:1:{a\x1b}l:i", Kind: "in-flight", Most: 5, Left: 2, Processes: 1, Holders: []throttleredis.Holder{{Name: "web-1-4711-abc", Slots: 3}, {Name: "web-2-4711-abc", Slots: 1}}},
		{Name: "throttle:1:{b}l:b", Kind: "bucket", Err: errors.New("WRONGTYPE")},
	}, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"throttle:1:{a?}l:i", "web-1-4711-abc", "3 slots", "1 slot ", "unreadable: WRONGTYPE"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

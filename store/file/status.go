package file

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/httpthrottle/throttle/store"
)

// Budgets returns the states of all budgets whose name in the file contains match, sorted by name. A name is the kind, the limit and the key,
// the last two in quotes.
func (s *Store) Budgets(ctx context.Context, match string) (all []store.BudgetState, err error) {
	err = s.locked(ctx, func() error {
		if err := s.read(); err != nil {
			return err
		}
		defer s.log.close()
		now := time.Now()
		for name, state := range s.log.states {
			if !strings.Contains(name, match) {
				continue
			}
			b := budgetOf(name)
			status := store.BudgetState{Kind: string(b.Kind), Limit: b.Limit, Key: b.Key}
			book, ok := store.NewBook(), true
			if err := book.SetState(&b, []byte(state.text)); err != nil {
				status.Err = err
			} else {
				status, ok = book.Status(&b, now)
			}
			if status.Name = name; ok {
				all = append(all, status)
			}
		}
		return nil
	})
	slices.SortFunc(all, func(a, b store.BudgetState) int { return cmp.Compare(a.Name, b.Name) })
	return all, s.wrap(err)
}

// budgetOf returns the kind, the limit and the key of a name.
func budgetOf(name string) (b store.Budget) {
	kind, rest, _ := strings.Cut(name, " ")
	b.Kind = store.Kind(kind)
	for _, field := range []*string{&b.Limit, &b.Key} {
		quoted, err := strconv.QuotedPrefix(rest)
		if err != nil {
			break
		}
		*field, _ = strconv.Unquote(quoted)
		rest = strings.TrimPrefix(rest[len(quoted):], " ")
	}
	return b
}

// Reset deletes the state of a budget. Name is its name in the file, as Budgets returns it. The budget starts again: a bucket with its
// initial tokens, and a window with n. Slots are counted again as their processes report them, which takes up to three seconds.
func (s *Store) Reset(ctx context.Context, name string) error {
	return s.change(ctx, name, func(string, time.Time) (string, error) { return none, nil })
}

// Hold blocks a budget for d from now on, or ends its hold if d is not positive. Name is its name in the file, as Budgets
// returns it. A process follows when it next calls the store, which it does when it needs tokens, and uses what it has leased
// until then.
func (s *Store) Hold(ctx context.Context, name string, d time.Duration) error {
	return s.change(ctx, name, func(text string, now time.Time) (string, error) {
		book, b := store.NewBook(), budgetOf(name)
		if err := book.SetState(&b, []byte(text)); err != nil {
			return "", err
		}
		if !book.Hold(&b, now, d) {
			return "", errNoBudget
		}
		return string(book.State(&b)), nil
	})
}

var errNoBudget = errors.New("there is no such budget")

// change replaces the state of a budget.
func (s *Store) change(ctx context.Context, name string, f func(text string, now time.Time) (string, error)) error {
	return s.wrap(s.locked(ctx, func() error {
		if err := s.read(); err != nil {
			return err
		}
		defer s.log.close()
		state, now := s.log.states[name], time.Now()
		if state == nil {
			return fmt.Errorf("%s: %q: %w", s.path, name, errNoBudget)
		}
		text, err := f(state.text, now)
		if err != nil {
			return fmt.Errorf("%s: %q: %w", s.path, name, err)
		}
		return s.log.write(now, []change{{name, text}})
	}))
}

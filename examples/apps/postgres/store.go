// Package postgres is a store of shared budgets over PostgreSQL, as an example of one over a database: copy it, and change what your
// database does otherwise.
//
// A call is a transaction that locks the rows of its budgets, has a [store.Book] decide, and writes the rows back. The rows are
// locked until the commit is on the disk of the server, so a budget bears as many calls a second as the server commits one after the
// other. On a busy machine with two processors that was 480 calls a second for one budget and 1,700 for 16 of them; 1,350 and 3,400
// where the server does not wait for its disk, as with an UNLOGGED table. A process leases tokens for many requests with one call.
package postgres

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/httpthrottle/throttle/store"
)

// Schema makes the table. It may be UNLOGGED: then calls do not wait for the disk, and a crash of the server makes every budget a
// new one.
const Schema = `CREATE TABLE IF NOT EXISTS throttle_budgets (
	id    bytea PRIMARY KEY,   -- SHA-256 of the name, which may be of any length
	name  text NOT NULL,       -- kind, limit and key: readable, unlike the id
	state bytea,               -- of a store.Book; NULL: as good as new
	until timestamptz NOT NULL -- the row may be deleted then
) WITH (fillfactor = 50) -- so that an update stays on its page`

// lock inserts the rows that are missing, and locks all, in the order of their ids, so that two transactions do not wait for each
// other. Now is the time once the rows are locked, by the clock that all processes share.
const lock = `INSERT INTO throttle_budgets AS b (id, name, until)
SELECT id, name, clock_timestamp() FROM unnest($1::bytea[], $2::text[]) AS asked (id, name) ORDER BY id
ON CONFLICT (id) DO UPDATE SET until = b.until
RETURNING b.id, b.state, clock_timestamp() AS now`

const write = `UPDATE throttle_budgets AS b SET state = new.state, until = new.until
FROM unnest($1::bytea[], $2::bytea[], $3::timestamptz[]) AS new (id, state, until) WHERE b.id = new.id`

// A Store implements [store.Store] over a pool of connections, which remains the caller's. It needs permission to select, insert
// and update, and to delete for [Store.Expire].
type Store struct{ pool *pgxpool.Pool }

// New returns a Store that uses a pool. It sends nothing to the server.
func New(pool *pgxpool.Pool) *Store { return &Store{pool} }

// Expire deletes the rows that are as good as new. Call it once in a while, an hour for example.
func (s *Store) Expire(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `DELETE FROM throttle_budgets WHERE until < now() - interval '1 minute'`)
	return classify(err)
}

// Lease implements [store.Store].
func (s *Store) Lease(ctx context.Context, asks []store.Ask) (leases []store.Lease, err error) {
	budgets := make(map[string]*budget) // by id
	for _, ask := range asks {
		for _, part := range ask.Parts {
			b := newBudget(&part.Budget)
			budgets[b.id] = b
		}
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		now, err := read(ctx, tx, budgets)
		if err != nil {
			return err
		}
		leases = decide(now, asks, budgets)
		return save(ctx, tx, budgets)
	})
	if err != nil {
		return nil, classify(err)
	}
	return leases, nil
}

// A budget is what is asked for, and its row.
type budget struct {
	of       store.Budget
	id, name string
	state    []byte
	until    time.Time
}

func newBudget(of *store.Budget) *budget {
	name := fmt.Sprintf("%q %q %q", of.Kind, of.Limit, of.Key) // also of names that are no text to PostgreSQL
	id := sha256.Sum256([]byte(name))
	return &budget{of: *of, id: string(id[:]), name: name[:min(len(name), 1000)]}
}

// read locks the rows of budgets, and reads them.
func read(ctx context.Context, tx pgx.Tx, budgets map[string]*budget) (now time.Time, err error) {
	var ids [][]byte
	var names []string
	for _, id := range slices.Sorted(maps.Keys(budgets)) {
		ids, names = append(ids, []byte(id)), append(names, budgets[id].name)
	}
	rows, err := tx.Query(ctx, lock, ids, names)
	if err != nil {
		return now, err
	}
	var id, state []byte
	var locked time.Time
	_, err = pgx.ForEachRow(rows, []any{&id, &state, &locked}, func() error {
		budgets[string(id)].state = slices.Clone(state)
		if locked.After(now) {
			now = locked
		}
		return nil
	})
	return now, err
}

// decide sets the states of budgets to what they are after the asks. A state that cannot be read fails the asks for it, and no other.
func decide(now time.Time, asks []store.Ask, budgets map[string]*budget) []store.Lease {
	book := store.NewBook()
	unreadable := make(map[string]error)
	for id, b := range budgets {
		if err := book.SetState(&b.of, b.state); err != nil {
			unreadable[id] = fmt.Errorf("postgres: %w", err)
		}
	}
	leases := make([]store.Lease, len(asks))
	for i, ask := range asks {
		for _, part := range ask.Parts {
			leases[i].Err = cmp.Or(leases[i].Err, unreadable[newBudget(&part.Budget).id])
		}
		if leases[i].Err == nil {
			leases[i] = book.Lease(now, asks[i:i+1])[0]
		}
	}
	for id, b := range budgets {
		if unreadable[id] == nil {
			b.state, b.until = book.State(&b.of), book.Until(&b.of)
		}
		if b.until.Before(now) {
			b.until = now
		}
	}
	return leases
}

// save writes the rows of budgets.
func save(ctx context.Context, tx pgx.Tx, budgets map[string]*budget) error {
	var ids, states [][]byte
	var until []time.Time
	for _, b := range budgets {
		ids, states, until = append(ids, []byte(b.id)), append(states, b.state), append(until, b.until)
	}
	if _, err := tx.Exec(ctx, write, ids, states, until); err != nil {
		return err
	}
	return context.Cause(ctx) // after its deadline, nothing is carried out
}

// setUp are the classes of errors that retrying does not fix: authorization, no such database, no permission, no such table.
var setUp = []string{"28", "3D", "42"}

// classify adds [store.ErrSetup] to the chain of an error that retrying does not fix.
func classify(err error) error {
	if response, ok := errors.AsType[*pgconn.PgError](err); ok && slices.Contains(setUp, response.Code[:2]) {
		return fmt.Errorf("%w: %w", store.ErrSetup, err)
	}
	return err
}

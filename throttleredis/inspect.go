package throttleredis

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// A BudgetState is the state of a budget in Redis. Its Name is the key in Redis. Long names, and names with braces or control characters, are
// replaced by hashes; see docs/lab/shared-limits.md.
type BudgetState = store.BudgetState

// A Holder is a process that has slots or waits for slots.
type Holder = store.Holder

// Budgets returns the states of all budgets whose key in Redis contains match, sorted by name. It reads every key of the prefix with
// SCAN, so it takes a while if there are many. It needs permission for TIME, SCAN, PTTL, GET and, for slots, HGETALL.
func (s *Store) Budgets(ctx context.Context, match string) ([]BudgetState, error) {
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return nil, err
	}
	var mu sync.Mutex
	var all []BudgetState
	err = s.eachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
		scan := c.Scan(ctx, 0, escaped(s.prefix)+":"+version+":{*", 1000).Iterator()
		for scan.Next(ctx) {
			name := scan.Val()
			if isNonce(name) || !strings.Contains(name, match) {
				continue
			}
			state, ok := s.inspect(ctx, c, name, now.UnixMicro())
			if ok {
				mu.Lock()
				all = append(all, state)
				mu.Unlock()
			}
		}
		return scan.Err()
	})
	slices.SortFunc(all, func(a, b BudgetState) int { return cmp.Compare(a.Name, b.Name) })
	return all, err
}

// Reset deletes the state of a budget. Name is the name of its key in Redis, as in [BudgetState]. The budget starts again: a bucket with
// its initial tokens, and a window with n. Slots are counted again as their processes report them, which takes up to three seconds.
func (s *Store) Reset(ctx context.Context, name string) error {
	if err := s.checkName(name); err != nil {
		return err
	}
	n, err := s.client.Del(ctx, name).Result()
	if err == nil && n == 0 {
		err = fmt.Errorf("throttleredis: there is no key %q in Redis", name)
	}
	return err
}

// hold sets the hold of a state: a double after the format and the three doubles of its head, or after the format of slots.
const hold = `
local now = redis.call('TIME')
now = now[1] * 1000000 + now[2]
local isHash = redis.call('TYPE', KEYS[1]).ok == 'hash'
local state, at = isHash and redis.call('HGET', KEYS[1], '') or not isHash and redis.call('GET', KEYS[1]), isHash and 2 or 26
if not state then return 0 end
if string.byte(state) ~= 1 or #state < at + 7 then return redis.error_reply('STATE it is not one that this release reads') end
local till = tonumber(ARGV[1]) > 0 and now + ARGV[1] or 0
state = string.sub(state, 1, at - 1) .. struct.pack('<d', till) .. string.sub(state, at + 8)
local left = math.max(redis.call('PTTL', KEYS[1]), math.ceil((till - now) / 1000) + 1000)
if isHash then redis.call('HSET', KEYS[1], '', state) else redis.call('SET', KEYS[1], state) end
redis.call('PEXPIRE', KEYS[1], left)
return 1
`

// Hold blocks a budget for d from now on, or ends its hold if d is not positive. Name is the name of its key in Redis, as in [BudgetState]. A
// process follows when it next calls the store, which it does when it needs tokens, and uses what it has leased until then. Hold needs
// permission for EVAL, TIME, TYPE, GET, SET, PTTL, PEXPIRE and, for slots, HGET and HSET.
func (s *Store) Hold(ctx context.Context, name string, d time.Duration) error {
	if err := s.checkName(name); err != nil {
		return err
	}
	micros := max(0, min(d, mostHold)).Microseconds()
	n, err := s.client.Eval(ctx, hold, []string{name}, micros).Int()
	if err == nil && n == 0 {
		err = fmt.Errorf("throttleredis: there is no key %q in Redis", name)
	}
	return err
}

const mostHold = 100 * 365 * 24 * time.Hour // as in package store

func (s *Store) checkName(name string) error {
	if !strings.HasPrefix(name, s.prefix+":"+version+":") {
		return fmt.Errorf("throttleredis: %q is not the key of a budget with the prefix %q", name, s.prefix)
	}
	return nil
}

func (s *Store) eachMaster(ctx context.Context, f func(context.Context, *redis.Client) error) error {
	switch c := s.client.(type) {
	case *redis.ClusterClient:
		return c.ForEachMaster(ctx, f)
	case *redis.Client:
		return f(ctx, c)
	}
	return fmt.Errorf("throttleredis: cannot list the keys of a %T", s.client)
}

// escaped returns a text that a pattern of SCAN matches as it is.
func escaped(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "?", `\?`, "[", `\[`, "]", `\]`).Replace(text)
}

// isNonce reports whether a key records the nonce of a script.
func isNonce(name string) bool {
	_, rest, ok := strings.Cut(name, "}")
	return ok && strings.HasPrefix(rest, "#") && !strings.Contains(rest, ":")
}

// inspect reads one state. It reports false if the state no longer exists.
func (s *Store) inspect(ctx context.Context, c *redis.Client, name string, now int64) (b BudgetState, ok bool) {
	b.Name = name
	text := strings.TrimPrefix(name, s.prefix+":"+version+":{")
	if s.oneSlot {
		text = strings.TrimPrefix(text, "#}")
	}
	b.Key, text, _ = strings.Cut(text, "}")
	if i := strings.LastIndexByte(text, ':'); i >= 0 {
		b.Limit = text[:i]
		if b.Key == "#"+b.Limit { // see SlotPerLimit
			b.Key = "#"
		}
		for kind, letter := range letters {
			if letter == text[i+1:] {
				b.Kind = string(kind)
			}
		}
	}
	b.Expires = max(0, c.PTTL(ctx, name).Val())
	var err error
	if b.Kind == string(store.Slots) {
		var fields map[string]string
		if fields, err = c.HGetAll(ctx, name).Result(); err == nil {
			ok, err = len(fields) > 0, readSlots(&b, fields, now)
		}
	} else {
		var state string
		if state, err = c.Get(ctx, name).Result(); err == nil {
			ok, err = true, readState(&b, state, now)
		}
	}
	if err == redis.Nil {
		return b, false
	}
	b.Err = err
	return b, ok || err != nil
}

// doubles returns the format of a state, and the numbers after it.
func doubles(state string) (format byte, all []float64) {
	if state == "" {
		return 0, nil
	}
	for rest := state[1:]; len(rest) >= 8; rest = rest[8:] {
		all = append(all, math.Float64frombits(binary.LittleEndian.Uint64([]byte(rest[:8]))))
	}
	return state[0], all
}

var errState = scriptError("STATE it is not one that this release reads")

const stateFormat = 1 // FORMAT in head.lua

// readState reads the state of a bucket or a window, as the scripts document it.
func readState(b *BudgetState, state string, now int64) error {
	format, f := doubles(state)
	if format != stateFormat || len(f) < 10 {
		return errState
	}
	seen, busy, before, hold, tick, n, per, full := f[0], f[1], f[2], f[3], f[5], f[6], f[7], f[8]
	b.PerSecond = n / per / tick * 1e6
	b.Held = micros(max(0, int64(hold)-now))
	epoch := float64(store.MaxSince / time.Microsecond)
	if at := float64(now) - math.Mod(float64(now), epoch); seen < at {
		if before = busy; seen < at-epoch {
			before = 0
		}
		busy = 0
	}
	b.Processes = max(1, int(math.Round((before*(1-math.Mod(float64(now), epoch)/epoch)+busy)/epoch)))
	switch store.Kind(b.Kind) {
	case store.Bucket, store.Pace:
		at, level := f[9], f[10]
		if held := math.Floor(min(hold, float64(now))/tick) - at; held > 0 {
			at, level = at+held, level+min(held*n, max(0, per-level))
		}
		b.Most = full / per
		b.Left = min(full, level+max(0, math.Floor(float64(now)/tick)-at)*n) / per
	case store.Sliding:
		used := f[9]
		for i := 10; i+1 < len(f) && f[i]+per <= float64(now); i += 2 {
			used -= f[i+1]
		}
		b.Most, b.Left = n, n-used
	case store.Fixed, store.Calendar:
		b.Most, b.Left = n, n-f[9]
		if len(f) < 12 {
			return errState
		}
		if ends := f[11]; ends <= float64(now) {
			b.Left = n
			if len(f) > 12 {
				b.Left -= max(0, f[12]-n*math.Floor((float64(now)-ends)/per))
			}
		}
	}
	return nil
}

// readSlots reads the state of slots.
func readSlots(b *BudgetState, fields map[string]string, now int64) error {
	format, f := doubles(fields[""])
	if format != stateFormat || len(f) < 7 {
		return errState
	}
	b.Held, b.Most, b.Left = micros(max(0, int64(f[0])-now)), f[2], f[2]
	for name, state := range fields {
		_, h := doubles("x" + state)
		if name == "" || len(h) < 3 || int64(h[2]) <= now {
			continue
		}
		b.Holders = append(b.Holders, Holder{Name: name, Slots: int64(h[0]), Wants: int64(h[1]), Expires: micros(int64(h[2]) - now)})
		b.Left -= h[0]
	}
	slices.SortFunc(b.Holders, func(a, b Holder) int { return cmp.Compare(a.Name, b.Name) })
	b.Processes = max(1, len(b.Holders))
	return nil
}

// Package saved is the form of a throttle.Snapshot: what is kept of a Limiter over a restart, and its JSON.
package saved

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"
)

// Version is the version of the JSON that this package writes, and the only one that it reads.
const Version = 1

// A State is what a Limiter has learned and what has been spent of its budgets.
type State struct {
	Version int           `json:"version"`
	Taken   time.Time     `json:"taken"`
	Buckets []Bucket      `json:"buckets,omitzero"`
	Servers []Server      `json:"servers,omitzero"`
	Held    time.Duration `json:"held,omitzero"` // for how long yet all keys, by HoldAll
}

// A Bucket is the state of one bucket that is not as good as new, exact as of the instant at which it was read.
type Bucket struct {
	Limit   string        `json:"limit"`
	Kind    string        `json:"kind,omitzero"` // of the limit, such as "bucket"
	Key     Key           `json:"key,omitzero"`
	Tokens  float64       `json:"tokens"`           // what was left of a TokenBucket or a Pace
	Spent   []Spent       `json:"spent,omitzero"`   // of a window
	Debt    int64         `json:"debt,omitzero"`    // of a window
	Learned *Learned      `json:"learned,omitzero"` // by an Adaptive limit
	Quota   *Reported     `json:"quota,omitzero"`   // what is known of a ServerQuota
	Share   float64       `json:"share,omitzero"`   // of their estimates, that requests are charged, by LearnCost; 0: all of it
	Held    time.Duration `json:"held,omitzero"`    // for how long yet
	After   time.Duration `json:"after,omitzero"`   // it was read that long after Taken
}

// Spent is what a window has granted.
type Spent struct {
	Ago  time.Duration `json:"ago"` // before the bucket was read
	Cost int64         `json:"cost"`
}

// Learned is what was learned about a key of an Adaptive or AdaptiveInFlight limit.
type Learned struct {
	InFlight float64 `json:"in_flight,omitzero"` // requests that may be in flight, of an AdaptiveInFlight limit, which has no rate
	Rate     float64 `json:"rate"`               // tokens per second
	Ceiling  float64 `json:"ceiling"`            // rate, or requests in flight, at the last sign of too much; 0: none yet
	Failures float64 `json:"failures,omitzero"`  // usual share of failed requests
	Latency  float64 `json:"latency,omitzero"`   // mean of the idle server, in seconds
	DearHold float64 `json:"dear_hold,omitzero"` // seconds for which the rate does not grow after an expensive rejection

	Paused time.Duration `json:"paused,omitzero"` // for how long yet a server has asked to stay away, of an Adaptive limit; it is only read, because Servers have it
}

// A Reported is what was learned of a ServerQuota, in tokens as requests were estimated to cost.
type Reported struct {
	Parts  []Part        `json:"parts,omitzero"`
	Hidden [2]Hidden     `json:"hidden,omitzero"` // of what requests cost, and of their number
	Took   float64       `json:"took"`            // seconds from the sending of a request to its end, in the mean
	Held   time.Duration `json:"held,omitzero"`
}

// A Part is what is known of a quota that responses reported.
type Part struct {
	Name    string        `json:"name"`
	Limit   float64       `json:"limit"`
	Left    float64       `json:"left"`
	Sent    float64       `json:"sent"`  // charged for each token of an estimate when a request is sent
	Ended   float64       `json:"ended"` // and when it ends
	Rate    float64       `json:"rate"`  // per second
	Refills float64       `json:"refills"`
	Ends    time.Duration `json:"ends"`
	Dry     bool          `json:"dry,omitzero"`
	Tight   bool          `json:"tight,omitzero"`
}

// A Hidden is what refusals have shown of a limit that is not reported.
type Hidden struct {
	Rate   float64       `json:"rate"` // per second
	Sure   bool          `json:"sure,omitzero"`
	Owed   float64       `json:"owed"`
	Window float64       `json:"window,omitzero"`
	More   float64       `json:"more,omitzero"`
	Ends   time.Duration `json:"ends,omitzero"`
}

// A Server is what a server has reported of its limits.
type Server struct {
	Host   string         `json:"host"`
	Parts  string         `json:"apart,omitzero"` // by which the API is known to count requests, besides
	Keys   map[string]Key `json:"keys,omitzero"`  // by which requests are counted there, by the limit that they are keys of
	Held   time.Duration  `json:"held,omitzero"`  // for how long yet
	Quotas []Quota        `json:"quotas,omitzero"`

	Guessed bool `json:"guessed,omitzero"` // no server has asked for the end of Held

	HostHeld time.Duration `json:"host_held,omitzero"` // for how long yet all requests to the host
	After    time.Duration `json:"after,omitzero"`     // it was read that long after Taken
}

// A Quota is what is left of a quota.
type Quota struct {
	Name    string        `json:"name"`
	Limit   int64         `json:"limit"` // -1: not known
	Left    int64         `json:"left"`  // less the requests in flight
	Reset   time.Duration `json:"reset"` // how long until more is left
	Counted bool          `json:"counted"`
	Reserve int64         `json:"reserve,omitzero"`
}

// A Key is what a KeyFunc returned. It may be any bytes, such as a hash, and a string of JSON holds only valid UTF-8: another Key
// is an object with its base64.
type Key string

type rawKey struct {
	Base64 []byte `json:"base64"`
}

func (k Key) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(k)) {
		return json.Marshal(string(k))
	}
	return json.Marshal(rawKey{[]byte(k)})
}

func (k *Key) UnmarshalJSON(text []byte) error {
	if text[0] != '{' {
		return json.Unmarshal(text, (*string)(k))
	}
	var raw rawKey
	err := json.Unmarshal(text, &raw)
	*k = Key(raw.Base64)
	return err
}

// Encode returns the JSON of a State.
func (s State) Encode() ([]byte, error) {
	s.Version = Version
	return json.Marshal(s)
}

// Decode returns the State of what Encode returned. The error is for another version too.
func Decode(text []byte) (State, error) {
	var of struct{ Version *int }
	if err := json.Unmarshal(text, &of); err != nil {
		return State{}, err
	}
	switch {
	case of.Version == nil:
		return State{}, errors.New("this is no Snapshot: it has no version")
	case *of.Version != Version:
		return State{}, fmt.Errorf("a Snapshot of version %d cannot be read, only version %d", *of.Version, Version)
	}
	var s State
	err := json.Unmarshal(text, &s)
	return s, err
}

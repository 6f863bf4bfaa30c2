package quota

import (
	"slices"

	"github.com/httpthrottle/throttle/internal/keep"
)

const fewAccounts = 8 // of a host, among which one is found without a map

// A roster is the accounts of a server.
type roster struct {
	accounts []*Account
	byKey    map[Key]*Account // nil: there are few
	peak     int              // the most accounts since that map was made
}

// find returns the account of a key without a family; nil: there is none.
func (o *roster) find(key Key) *Account {
	if o.byKey != nil {
		return o.byKey[key]
	}
	for _, a := range o.accounts {
		if a.Key == key {
			return a
		}
	}
	return nil
}

func (o *roster) add(a *Account) {
	a.nth = int32(len(o.accounts))
	o.accounts = append(o.accounts, a)
	if o.byKey == nil && len(o.accounts) > fewAccounts {
		o.byKey = make(map[Key]*Account)
		for _, a := range o.accounts {
			o.byKey[a.Key] = a
		}
	}
	if o.byKey != nil {
		o.byKey[a.Key] = a
		o.peak = max(o.peak, len(o.byKey))
	}
}

func (o *roster) remove(a *Account) {
	n := len(o.accounts) - 1
	last := o.accounts[n]
	o.accounts[a.nth], last.nth = last, a.nth
	o.accounts[n], o.accounts = nil, o.accounts[:n]
	if o.byKey != nil {
		delete(o.byKey, a.Key)
		o.byKey = keep.Shrunk(o.byKey, &o.peak)
	}
	if n < cap(o.accounts)/4 && cap(o.accounts) > keep.ShrinkAbove {
		o.accounts = slices.Clone(o.accounts)
	}
}

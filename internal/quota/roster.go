package quota

import (
	"slices"

	"github.com/httpthrottle/throttle/internal/keep"
)

const fewGroups = 8 // of a host, among which one is found without a map

// A group is one host and one set of request keys. It has one account, until responses show that the server counts its requests
// separately.
type group struct {
	accounts []*Account
	nth      int // of the host's groups
}

func (p *group) key() *Key { return &p.accounts[0].Key }

// A roster is the groups of a server, and their accounts.
type roster struct {
	groups   []*group
	accounts []*Account
	byKey    map[Key]*group // nil: there are few
	peak     int            // the most groups since that map was made
}

// find returns the group of a key; nil: there is none.
func (o *roster) find(key *Key) *group {
	if o.byKey != nil {
		return o.byKey[key.ofGroup()]
	}
	for _, p := range o.groups {
		if p.key().sameGroup(key) {
			return p
		}
	}
	return nil
}

// add adds an account to the group of its key.
func (o *roster) add(a *Account) {
	a.nth = int32(len(o.accounts))
	o.accounts = append(o.accounts, a)
	if a.group = o.find(&a.Key); a.group != nil {
		a.group.accounts = append(a.group.accounts, a)
		return
	}
	a.group = &group{[]*Account{a}, len(o.groups)}
	o.groups = append(o.groups, a.group)
	if o.byKey == nil && len(o.groups) > fewGroups {
		o.byKey = make(map[Key]*group)
		for _, p := range o.groups {
			o.byKey[p.key().ofGroup()] = p
		}
	}
	if o.byKey != nil {
		o.byKey[a.Key.ofGroup()] = a.group
		o.peak = max(o.peak, len(o.byKey))
	}
}

// remove removes an account, and its group with the last one.
func (o *roster) remove(a *Account) {
	n := len(o.accounts) - 1
	last := o.accounts[n]
	o.accounts[a.nth], last.nth = last, a.nth
	o.accounts[n], o.accounts = nil, o.accounts[:n]
	if n < cap(o.accounts)/4 && cap(o.accounts) > keep.ShrinkAbove {
		o.accounts = slices.Clone(o.accounts)
	}
	p := a.group
	if p.accounts = slices.DeleteFunc(p.accounts, func(x *Account) bool { return x == a }); len(p.accounts) == 0 {
		o.disband(p, a.Key)
	}
}

// disband removes a group without accounts.
func (o *roster) disband(p *group, key Key) {
	n := len(o.groups) - 1
	last := o.groups[n]
	o.groups[p.nth], last.nth = last, p.nth
	o.groups[n], o.groups = nil, o.groups[:n]
	if n < cap(o.groups)/4 && cap(o.groups) > keep.ShrinkAbove {
		o.groups = slices.Clone(o.groups)
	}
	if o.byKey != nil {
		delete(o.byKey, key.ofGroup())
		o.byKey = keep.Shrunk(o.byKey, &o.peak)
	}
}

package quota

import "github.com/httpthrottle/throttle/internal/meter"

// A Server is one host, for all accounts.
type Server struct {
	barrier
	last  LastRefusal // that held all accounts
	by    *Account    // to which it came; nil: there was none
	asked bool        // a request was sent during the hold, to find out whether it concerns the whole host, and no accepted one later
	roster
	byModel bool             // the model of a request is one of these traits
	finer   map[uint64]finer // by family; nil: none is divided
}

// NewServer returns a server that holds nothing.
func NewServer(seed uint64) *Server {
	return &Server{barrier: barrier{set: -1, dice: meter.Dice(seed)}}
}

// mayAsk reports whether a request of an account may be sent during a hold, to find out whether it concerns the whole host. One does, until
// a request is accepted: of other keys only one of which requests were accepted before, because of new ones a host may have very many.
func (s *Server) mayAsk(a *Account) bool {
	return !s.asked && s.by != nil && (s.by.group == a.group || a.bare.Given)
}

// takes takes a request that is sent then.
func (s *Server) takes(due meter.Instant) { s.asked = s.asked || due < s.held }

// accepted takes an accepted request of an account, and reports whether it ended a hold: one that was sent during the hold shows that it
// concerns no more than the account to whose request the refusal came.
func (s *Server) accepted(a *Account, now, sent meter.Instant) (opened bool) {
	if sent <= s.set {
		return false
	}
	s.asked = false
	if opened = s.by != nil && s.by != a && sent < s.held && now < s.held; opened {
		s.by.local = true
		s.release(now)
	}
	return opened
}

// Accounts returns the accounts of a server, which are not to be changed. The server may be nil.
func (s *Server) Accounts() []*Account {
	if s == nil {
		return nil
	}
	return s.accounts
}

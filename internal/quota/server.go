package quota

import "github.com/httpthrottle/throttle/internal/meter"

// A Server is one host, for all accounts.
type Server struct {
	barrier
	last LastRefusal // that held all accounts
	roster
	byModel bool             // the model of a request is one of these traits
	finer   map[uint64]finer // by family; nil: none is divided
}

// NewServer returns a server that holds nothing.
func NewServer(seed uint64) *Server {
	return &Server{barrier: barrier{set: -1, dice: meter.Dice(seed)}}
}

// Accounts returns the accounts of a server, which are not to be changed. The server may be nil.
func (s *Server) Accounts() []*Account {
	if s == nil {
		return nil
	}
	return s.accounts
}

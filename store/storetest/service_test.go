package storetest_test

import (
	"bytes"
	"context"
	"encoding/gob"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/httpthrottle/throttle/store"
	"github.com/httpthrottle/throttle/store/storetest"
)

// A leased is a Lease as package gob encodes it. JSON would not do: keys may be invalid UTF-8.
type leased struct {
	Parts        []store.LeasedPart
	Err          string
	Setup, Apart bool // what is in the chain of Err
}

// serve returns a service that keeps budgets in memory.
func serve() http.Handler {
	memory := store.NewMemory()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var asks []store.Ask
		if err := gob.NewDecoder(r.Body).Decode(&asks); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		leases, err := memory.Lease(r.Context(), asks)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		all := make([]leased, len(leases))
		for i, l := range leases {
			all[i] = leased{Parts: l.Parts}
			if l.Err != nil {
				all[i].Err, all[i].Setup, all[i].Apart = l.Err.Error(), errors.Is(l.Err, store.ErrSetup), errors.Is(l.Err, store.ErrApart)
			}
		}
		_ = gob.NewEncoder(w).Encode(all)
	})
}

// A service is a Store over HTTP. It never sends an ask twice, because the service might then count a return twice.
type service struct{ url string }

func (s *service) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	var body bytes.Buffer
	if err := gob.NewEncoder(&body).Encode(asks); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, &body)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", store.ErrSetup, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return nil, fmt.Errorf("%w: %s", store.ErrSetup, resp.Status)
	case resp.StatusCode != http.StatusOK:
		return nil, errors.New(resp.Status)
	}
	var all []leased
	if err := gob.NewDecoder(resp.Body).Decode(&all); err != nil {
		return nil, err
	}
	leases := make([]store.Lease, len(all))
	for i, l := range all {
		leases[i].Parts = l.Parts
		switch {
		case l.Setup:
			leases[i].Err = fmt.Errorf("%w: %s", store.ErrSetup, l.Err)
		case l.Apart:
			leases[i].Err = store.ErrApart
		case l.Err != "":
			leases[i].Err = errors.New(l.Err)
		}
	}
	return leases, nil
}

// A store of a service of one's own, in front of budgets in memory, passes all tests.
func TestStoreOfAServiceConforms(t *testing.T) {
	server := httptest.NewServer(serve())
	t.Cleanup(server.Close)
	storetest.Run(t, func(*testing.T) store.Store { return &service{server.URL} })
}

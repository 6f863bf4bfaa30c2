// Package tests has the tests of package throttle that use only what a user can use.
package tests

import (
	"net/http"
	"os"
	"testing"
)

// The tests that read files of the repository name them from its root.
func TestMain(m *testing.M) {
	if err := os.Chdir("../.."); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// offline is an API that needs no server.
type offline struct{}

func (offline) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{Status: "200 OK", StatusCode: http.StatusOK, Body: http.NoBody, Request: r}, nil
}

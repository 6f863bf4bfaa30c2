package throttleredis

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle"
)

// The first call that fails says why, and so does Stores, with go-redis's default options.
func TestCausesAreInTheFirstError(t *testing.T) {
	plain, secret := start(t), start(t, "--requirepass", "right")
	cert, key, _ := certificate(t)

	tlsPort := listenTLS(t, cert, key, plain.addr())
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	noEval := start(t, "--rename-command", "EVAL", "")
	for name, c := range map[string]struct {
		options redis.Options
		want    []string
	}{
		"refused connection":  {redis.Options{Addr: "127.0.0.1:1"}, []string{"connection refused", "no response from the store within 250ms"}},
		"TLS to a plain port": {redis.Options{Addr: plain.addr(), TLSConfig: &tls.Config{InsecureSkipVerify: true}}, []string{"does not look like a TLS handshake", "connecting to"}},
		"wrong authority":     {redis.Options{Addr: tlsPort, TLSConfig: &tls.Config{}}, []string{"certificate signed by unknown authority"}},
		"silent server":       {redis.Options{Addr: silent.Addr().String(), TLSConfig: &tls.Config{InsecureSkipVerify: true}}, []string{"connecting to " + silent.Addr().String() + " for 2"}},
		"no such host":        {redis.Options{Addr: "host.invalid:6379"}, []string{"host.invalid"}},
		"wrong password":      {redis.Options{Addr: secret.addr(), Password: "wrong"}, []string{"WRONGPASS"}},
		"no password":         {redis.Options{Addr: secret.addr()}, []string{"NOAUTH"}},
		"no such script":      {redis.Options{Addr: noEval.addr()}, []string{"NOSCRIPT"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var errs []error
			for range 20 { // a busy machine may get no further within the timeout than that it connects
				if errs = firstErrors(t, c.options); !slices.ContainsFunc(errs, func(err error) bool { return !containsOne(err.Error(), c.want) }) {
					return
				}
			}
			t.Errorf("none of %q in each of %q", c.want, errs)
		})
	}
}

// firstErrors returns the error of the first request, its cause and the error in Stores.
func firstErrors(t *testing.T, options redis.Options) []error {
	t.Helper()
	client := redis.NewClient(&options)
	defer client.Close()
	l, err := throttle.NewLimiter(throttle.WithMaxWait(time.Second), throttle.WithLimit(
		throttle.TokenBucket(10, time.Second, throttle.Shared(newStore(t, client), throttle.StoreGrace(0)))))
	must(t, err)
	err = l.Wait(t.Context(), throttle.Ask{})
	rejection, ok := errors.AsType[*throttle.Rejection](err)
	if !ok || rejection.Reason != throttle.ReasonStore {
		t.Fatalf("got %v", err)
	}
	s := l.Stores()[0]
	if s.Failed+s.Setup != 1 {
		t.Errorf("%d calls failed, and %d by a wrong set-up", s.Failed, s.Setup)
	}
	return []error{err, rejection.Err, s.Err}
}

func containsOne(text string, of []string) bool {
	for _, want := range of {
		if strings.Contains(text, want) {
			return true
		}
	}
	return false
}

// An attempt to connect that succeeds ends the cause of those before.
func TestDialsRememberTheLatestAttempt(t *testing.T) {
	var s Store
	if err := s.Cause(); err != nil {
		t.Error(err)
	}
	down := errors.New("down")
	s.dials.begin("a:1")
	if err := s.Cause(); err == nil || !strings.Contains(err.Error(), "connecting to a:1 for") {
		t.Error(err)
	}
	s.dials.end(down)
	s.dials.begin("a:1")
	if err := s.Cause(); !errors.Is(err, down) {
		t.Error(err)
	}
	s.dials.end(nil)
	if err := s.Cause(); err != nil {
		t.Error(err)
	}
}

// listenTLS forwards connections to a server, and returns its address.
func listenTLS(t *testing.T, cert, key, to string) string {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(cert, key)
	must(t, err)
	l, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{pair}})
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go forward(c, to)
		}
	}()
	return l.Addr().String()
}

func forward(c net.Conn, to string) {
	defer c.Close()
	s, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer s.Close()
	go func() { _, _ = io.Copy(s, c) }()
	_, _ = io.Copy(c, s)
}

// certificate makes a certificate of 127.0.0.1, which signs itself, and returns the names of the files with it and with its key.
func certificate(t *testing.T) (cert, key string, pool *x509.CertPool) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	like := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "redis"}, NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, like, like, private.Public(), private)
	must(t, err)
	secret, err := x509.MarshalPKCS8PrivateKey(private)
	must(t, err)
	dir := t.TempDir()
	cert, key, pool = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), x509.NewCertPool()
	text := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	pool.AppendCertsFromPEM(text)
	must(t, os.WriteFile(cert, text, 0o600))
	must(t, os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	return cert, key, pool
}

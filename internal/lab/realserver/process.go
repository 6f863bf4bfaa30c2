package realserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/httpthrottle/throttle/throttletest"
)

// A Server is a running server, a process of its own on a free loopback port.
type Server struct {
	Spec
	URL string

	dir, token string
	origin     *throttletest.Server // of a proxy
	log        lockedBuffer
	cmd        *exec.Cmd
	ended      chan struct{} // closed when the process has ended
}

// pool is the program that is built from the package of this name.
const pool = "pool"

// Installed reports whether the server's program is there.
func (s Spec) Installed() bool {
	if s.program == pool {
		return s.needs == "" || Postgres(s.needs) != ""
	}
	if _, err := s.path(); err != nil {
		return false
	}
	if s.program == "node" {
		_, err := os.Stat(filepath.Join(sourceDir(), "node", "node_modules"))
		return err == nil
	}
	return s.settings["Modules"] == "" || len(must(filepath.Glob("/etc/nginx/modules-enabled/*lua*"))) > 0
}

// path looks first where Debian puts servers, since another program of that name may precede it in PATH.
func (s Spec) path() (string, error) {
	for _, dir := range []string{"/usr/sbin", "/usr/bin"} {
		if path, err := exec.LookPath(filepath.Join(dir, s.program)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(s.program)
}

// Postgres returns the path of one of PostgreSQL's programs, which Debian does not put into PATH; "": there is none.
func Postgres(program string) string {
	if path, err := exec.LookPath(program); err == nil {
		return path
	}
	if all := must(filepath.Glob(filepath.Join("/usr/lib/postgresql/*/bin", program))); len(all) > 0 {
		return all[len(all)-1]
	}
	return ""
}

// Start starts the server and waits until it is ready. The caller must Close it.
func (s Spec) Start() (*Server, error) {
	if s.Service == 0 {
		s.Service = 2 * time.Millisecond
	}
	srv := &Server{Spec: s, token: rand.Text()}
	var err error
	if srv.dir, err = os.MkdirTemp("", "realserver"); err != nil {
		return nil, err
	}
	if s.proxy {
		srv.origin, err = throttletest.New(throttletest.WithServiceTime(throttletest.Constant(s.Service)), throttletest.WithRecording(0))
		if err != nil {
			return nil, errors.Join(err, os.RemoveAll(srv.dir))
		}
	}
	for range 5 { // another process may take the port before the server does
		if srv.URL, err = freeURL(); err != nil {
			break
		}
		if err = srv.Launch(); err == nil {
			return srv, nil
		}
	}
	srv.Close()
	return nil, fmt.Errorf("%s does not start: %w\n%s", s.Name, err, srv.log.String())
}

// Close ends the server.
func (s *Server) Close() {
	s.Kill()
	if s.origin != nil {
		s.origin.Close()
	}
	_ = os.RemoveAll(s.dir) // what is left lies in the directory for temporary files
}

// Launch starts a process for the server at its old address, after Kill.
func (s *Server) Launch() error {
	if err := s.configure(); err != nil {
		return err
	}
	program, err := s.executable()
	if err != nil {
		return err
	}
	args, err := s.expandAll(s.args)
	if err != nil {
		return err
	}
	env, err := s.expandAll(s.env)
	if err != nil {
		return err
	}
	s.cmd = exec.Command(program, args...)
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	s.cmd.WaitDelay = 5 * time.Second
	ownGroup(s.cmd)
	if err := s.cmd.Start(); err != nil {
		return err
	}
	ended := make(chan struct{})
	s.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait() // how it ended is in the log
		close(ended)
	}(s.cmd)
	return s.awaitReady()
}

// executable returns the path of the server's program, which may have to be built.
func (s *Server) executable() (string, error) {
	if s.program != pool {
		return s.path()
	}
	path := filepath.Join(s.dir, pool)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	build := exec.Command("go", "build", "-o", path, "github.com/httpthrottle/throttle/internal/lab/realserver/pool")
	build.Stderr = &s.log
	return path, build.Run()
}

func (s *Server) awaitReady() error {
	for range 400 {
		select {
		case <-s.ended:
			return errors.New("the process has ended")
		case <-time.After(50 * time.Millisecond):
			if s.ready() {
				return nil
			}
		}
	}
	s.Kill()
	return errors.New("not ready within 20 s")
}

// ready reports whether this very server answers.
func (s *Server) ready() bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/ready", nil)
	if err != nil {
		return false
	}
	resp, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return err == nil && strings.TrimSpace(string(body)) == s.token
}

// Kill ends the process and waits for that. The address stays the server's.
func (s *Server) Kill() {
	if s.cmd == nil || s.cmd.Process == nil {
		return
	}
	_ = s.Terminate()
	select {
	case <-s.ended:
	case <-time.After(3 * time.Second):
		_ = killGroup(s.cmd)
		<-s.ended
	}
	_ = killGroup(s.cmd) // children that have outlived it
	s.cmd = nil
}

// Reconfigure changes settings of a running nginx, pairs of names and values, and makes it reload them.
func (s *Server) Reconfigure(n int64, pairs ...string) error {
	s.Spec = s.Spec.with(s.Name, pairs...)
	s.N = n
	if err := s.configure(); err != nil {
		return err
	}
	return s.hangUp()
}

// configure writes the server's files.
func (s *Server) configure() error {
	for _, name := range s.files {
		text, err := os.ReadFile(filepath.Join(sourceDir(), "testdata", name))
		if err != nil {
			return err
		}
		full, err := s.expand(string(text))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.dir, name), []byte(full), 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) expandAll(texts []string) ([]string, error) {
	all := make([]string, len(texts))
	for i, text := range texts {
		var err error
		if all[i], err = s.expand(text); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// expand fills in a template. Settings are templates as well.
func (s *Server) expand(text string) (string, error) {
	addr := strings.TrimPrefix(s.URL, "http://")
	data := map[string]string{
		"Dir": s.dir, "Source": sourceDir(), "Addr": addr, "Token": s.token,
		"N": strconv.FormatInt(s.N, 10), "Seconds": strconv.FormatInt(int64(s.Per/time.Second), 10),
		"Service": strconv.FormatFloat(s.Service.Seconds(), 'f', -1, 64), "ServiceMS": strconv.FormatInt(s.Service.Milliseconds(), 10),
	}
	if s.origin != nil {
		data["Origin"] = strings.TrimPrefix(s.origin.URL, "http://")
		data["OriginHost"], data["OriginPort"], _ = net.SplitHostPort(data["Origin"])
	}
	maps.Copy(data, s.settings)
	for range 2 {
		tmpl, err := template.New("").Option("missingkey=error").Parse(text)
		if err != nil {
			return "", err
		}
		var full strings.Builder
		if err := tmpl.Execute(&full, data); err != nil {
			return "", err
		}
		text = full.String()
	}
	return text, nil
}

// freeURL returns a loopback address at which nothing listens, for now.
func freeURL() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return "http://" + l.Addr().String(), nil
}

// sourceDir returns this package's directory, in a binary that was built with -trimpath, too.
func sourceDir() string {
	out := must(exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/httpthrottle/throttle/internal/lab/realserver").Output())
	return strings.TrimSpace(string(out))
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// A lockedBuffer can be read while a process writes to it.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

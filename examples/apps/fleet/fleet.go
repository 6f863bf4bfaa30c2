package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/httpthrottle/throttle/store"
)

// A fleet is the processes and their store: real ones, or what stands for them in this process.
type fleet struct {
	api   string
	redis *server // nil: there is none, and memory is the store
	stops map[int]func() error

	memory *memory
}

func newFleet(redisServer, api string) (*fleet, error) {
	f := &fleet{api: api, stops: make(map[int]func() error), memory: &memory{Store: store.NewMemory()}}
	if redisServer == "" {
		return f, nil
	}
	var err error
	f.redis, err = newServer(redisServer)
	return f, err
}

// start starts a process.
func (f *fleet) start(ctx context.Context, process int) error {
	if f.redis == nil {
		ctx, cancel := context.WithCancel(ctx)
		done := make(chan error, 1)
		go func() { done <- work(ctx, process, f.memory, f.api) }()
		f.stops[process] = func() error {
			cancel()
			return <-done
		}
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, "-process", strconv.Itoa(process), "-redis", f.redis.addr, "-api", f.api)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	f.stops[process] = func() error {
		err := cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
		return err
	}
	return nil
}

func (f *fleet) kill(process int) error {
	stop := f.stops[process]
	delete(f.stops, process)
	return stop()
}

func (f *fleet) stopStore() error {
	if f.redis == nil {
		f.memory.stopped.Store(true)
		return nil
	}
	return f.redis.stop()
}

func (f *fleet) startStore() error {
	if f.redis == nil {
		f.memory.stopped.Store(false)
		return nil
	}
	return f.redis.start()
}

// close ends all that is left.
func (f *fleet) close() {
	for process := range f.stops {
		_ = f.kill(process)
	}
	if f.redis != nil {
		_ = f.redis.stop()
		_ = os.RemoveAll(f.redis.dir)
	}
}

// memory is a store in memory that can be stopped.
type memory struct {
	store.Store
	stopped atomic.Bool
}

func (m *memory) Lease(ctx context.Context, asks []store.Ask) ([]store.Lease, error) {
	if m.stopped.Load() {
		return nil, errors.New("the store is stopped")
	}
	return m.Store.Lease(ctx, asks)
}

// A server is a redis-server of our own.
type server struct {
	path, addr, dir string
	cmd             *exec.Cmd
}

func newServer(path string) (*server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0") // to find a free port
	if err != nil {
		return nil, err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "fleet")
	if err != nil {
		return nil, err
	}
	s := &server{path: path, addr: addr, dir: dir}
	if err := s.start(); err != nil {
		return nil, err
	}
	return s, nil
}

// start starts redis-server and waits until it responds.
func (s *server) start() error {
	_, port, err := net.SplitHostPort(s.addr)
	if err != nil {
		return err
	}
	s.cmd = exec.Command(s.path, "--port", port, "--bind", "127.0.0.1", "--dir", s.dir, "--save", "", "--appendonly", "no")
	if err := s.cmd.Start(); err != nil {
		return err
	}
	rdb := redis.NewClient(&redis.Options{Addr: s.addr, MaxRetries: -1})
	defer rdb.Close()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		err := rdb.Ping(context.Background()).Err()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("redis-server does not respond: %w", err)
		}
	}
}

func (s *server) stop() error {
	err := s.cmd.Process.Kill()
	_ = s.cmd.Wait() // it was killed
	return err
}

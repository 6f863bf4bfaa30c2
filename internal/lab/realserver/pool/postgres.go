package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/httpthrottle/throttle/internal/lab/realserver"
)

// A postgres is a running PostgreSQL that only this program can reach.
type postgres struct {
	cmd    *exec.Cmd
	socket string
}

// startPostgres makes a database in a directory, and waits until it is ready.
func startPostgres(dir string) (*postgres, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	as, err := unprivileged(dir)
	if err != nil {
		return nil, err
	}
	run := func(program string, args ...string) *exec.Cmd {
		cmd := exec.Command(realserver.Postgres(program), args...)
		cmd.Dir, cmd.SysProcAttr, cmd.Stderr = dir, as, os.Stderr
		return cmd
	}
	data := filepath.Join(dir, "db")
	if err := run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "--no-sync").Run(); err != nil {
		return nil, fmt.Errorf("initdb: %w", err)
	}
	db := &postgres{run("postgres", "-D", data, "-k", dir, "-c", "listen_addresses=", "-c", "fsync=off"), filepath.Join(dir, ".s.PGSQL.5432")}
	if err := db.cmd.Start(); err != nil {
		return nil, err
	}
	for range 200 {
		time.Sleep(50 * time.Millisecond)
		if c, err := db.connect(); err == nil {
			_ = c.Close()
			return db, nil
		}
	}
	db.stop()
	return nil, errors.New("PostgreSQL is not ready within 10 s")
}

// stop ends it, and the connections to it.
func (p *postgres) stop() {
	_ = p.cmd.Process.Signal(os.Interrupt)
	_ = p.cmd.Wait()
}

// A conn speaks as much of PostgreSQL's protocol as a query without parameters needs.
type conn struct {
	net.Conn
	r *bufio.Reader
}

func (p *postgres) connect() (*conn, error) {
	nc, err := net.Dial("unix", p.socket)
	if err != nil {
		return nil, err
	}
	c := &conn{nc, bufio.NewReader(nc)}
	const version = 3 << 16
	hello := binary.BigEndian.AppendUint32(nil, version)
	hello = append(hello, "user\x00postgres\x00database\x00postgres\x00\x00"...)
	if err := errors.Join(c.send(nil, hello), c.awaitReady()); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

func (c *conn) query(sql string) error {
	if err := c.send([]byte{'Q'}, append([]byte(sql), 0)); err != nil {
		return err
	}
	return c.awaitReady()
}

func (c *conn) send(kind, body []byte) error {
	_, err := c.Write(append(binary.BigEndian.AppendUint32(kind, uint32(len(body)+4)), body...))
	return err
}

// awaitReady reads messages until the server is ready for a query.
func (c *conn) awaitReady() (failed error) {
	for {
		var head [5]byte
		if _, err := io.ReadFull(c.r, head[:]); err != nil {
			return err
		}
		body := make([]byte, binary.BigEndian.Uint32(head[1:])-4)
		if _, err := io.ReadFull(c.r, body); err != nil {
			return err
		}
		switch head[0] {
		case 'E':
			failed = fmt.Errorf("PostgreSQL: %q", body)
		case 'Z':
			return failed
		}
	}
}

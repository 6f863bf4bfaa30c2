package throttleredis

import (
	"context"
	"crypto/sha1"
	"embed"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// A scripts has a script for each set of files of kinds, so that Redis runs no more of them than a call needs.
type scripts [1 << len(kindFiles)]script

// A script is run by its hash, which Redis knows until it restarts, fails over or runs SCRIPT FLUSH.
type script struct{ source, sha string }

//go:embed scripts
var sources embed.FS

// kindFiles are the names of the files of kinds.
var kindFiles = [...]string{"bucket", "sliding", "fixed", "slots"}

var leaseScripts = newScripts(func(name string) string {
	text, err := sources.ReadFile("scripts/" + name + ".lua")
	if err != nil {
		panic("throttleredis: bug: " + err.Error())
	}
	return string(text)
})

// newScripts puts the scripts together from the files that source returns.
func newScripts(source func(name string) string) *scripts {
	all := new(scripts)
	for set := range all {
		text := source("head")
		for i, name := range kindFiles {
			if set&(1<<i) != 0 {
				text += source(name)
			}
		}
		text = bare(text + source("asks"))
		sum := sha1.Sum([]byte(text))
		all[set] = script{text, hex.EncodeToString(sum[:])}
	}
	return all
}

// bare returns a source without its comments, which Redis need not keep. The line that a script begins with is not one.
func bare(source string) string {
	var text strings.Builder
	for line := range strings.Lines(source) {
		if code, _, _ := strings.Cut(line, "-- "); strings.TrimSpace(code) != "" {
			text.WriteString(strings.TrimRight(code, " \n") + "\n")
		}
	}
	return text.String()
}

// exec runs the script of each call by its hash, and by its source if Redis does not have it. It returns an error if another server
// has taken over from the one that responded.
func (s *Store) exec(ctx context.Context, calls []*call) error {
	if client, ok := s.client.(*redis.Client); ok && len(calls) > 0 && s.fence.looks(time.Since(s.began)) {
		info := s.execHash(ctx, calls, client)
		if err := s.look(ctx, client, info); err != nil {
			return err
		}
	} else {
		s.execHash(ctx, calls, nil)
	}
	var missing []*call
	for _, c := range calls {
		if redis.HasErrorPrefix(c.err, "NOSCRIPT") {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		s.logger.DebugContext(ctx, "throttleredis: Redis does not have the script and gets it", "scripts", len(missing))
		s.execSource(ctx, missing)
	}
	for _, c := range missing {
		if c.err != nil {
			c.err = fmt.Errorf("NOSCRIPT, and Redis did not take the script: %w", c.err)
		}
	}
	return nil
}

// execHash also asks the server what it is, if look is not nil.
func (s *Store) execHash(ctx context.Context, calls []*call, look *redis.Client) (info *redis.StringCmd) {
	return s.pipeline(ctx, calls, look, func(p redis.Cmdable, c *call) *redis.Cmd {
		return p.EvalSha(ctx, s.scripts[c.kinds].sha, c.keys, c.args)
	})
}

func (s *Store) execSource(ctx context.Context, calls []*call) {
	s.pipeline(ctx, calls, nil, func(p redis.Cmdable, c *call) *redis.Cmd {
		return p.Eval(ctx, s.scripts[c.kinds].source, c.keys, c.args)
	})
}

// pipeline runs scripts in a pipeline, also a single one: go-redis keeps separate connections for pipelines, and calls with and
// without INFO would need both, which takes several round trips to make. A Cluster is not asked for INFO.
func (s *Store) pipeline(ctx context.Context, calls []*call, look *redis.Client, run func(redis.Cmdable, *call) *redis.Cmd) (info *redis.StringCmd) {
	if len(calls) == 0 {
		return nil
	}
	if s.cluster && len(calls) == 1 {
		calls[0].reply, calls[0].err = run(s.client, calls[0]).Text()
		return nil
	}
	cmds := make([]*redis.Cmd, len(calls))
	p := s.client.Pipeline()
	for i, c := range calls {
		cmds[i] = run(p, c)
	}
	if look != nil {
		info = p.Info(ctx, "replication")
	}
	_, err := p.Exec(ctx)
	for i, c := range calls {
		if cmds[i].Err() == nil && cmds[i].Val() == nil { // no connection: each command has its own error otherwise
			c.err = err
			continue
		}
		c.reply, c.err = cmds[i].Text()
	}
	return info
}

package throttleredis

import (
	"context"
	"crypto/sha1"
	_ "embed" // of the script
	"encoding/hex"

	"github.com/redis/go-redis/v9"
)

//go:embed lease.lua
var leaseSource string

var leaseScript = newScript(leaseSource)

// A script is run by its hash, which Redis knows until it restarts, fails over or runs SCRIPT FLUSH.
type script struct{ source, sha string }

func newScript(source string) script {
	sum := sha1.Sum([]byte(source))
	return script{source, hex.EncodeToString(sum[:])}
}

// exec runs the script of each call by its hash, and by its source if Redis does not have it.
func (s *Store) exec(ctx context.Context, calls []*call) {
	s.execHash(ctx, calls)
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
}

func (s *Store) execHash(ctx context.Context, calls []*call) {
	s.pipeline(ctx, calls, func(p redis.Cmdable, c *call) *redis.Cmd {
		return p.EvalSha(ctx, s.script.sha, c.keys, c.args)
	})
}

func (s *Store) execSource(ctx context.Context, calls []*call) {
	s.pipeline(ctx, calls, func(p redis.Cmdable, c *call) *redis.Cmd {
		return p.Eval(ctx, s.script.source, c.keys, c.args)
	})
}

func (s *Store) pipeline(ctx context.Context, calls []*call, run func(redis.Cmdable, *call) *redis.Cmd) {
	switch len(calls) {
	case 0:
		return
	case 1:
		calls[0].reply, calls[0].err = run(s.client, calls[0]).Text()
		return
	}
	cmds := make([]*redis.Cmd, len(calls))
	p := s.client.Pipeline()
	for i, c := range calls {
		cmds[i] = run(p, c)
	}
	_, _ = p.Exec(ctx) // each command has its own error
	for i, c := range calls {
		c.reply, c.err = cmds[i].Text()
	}
}

package realserver

import (
	"fmt"
	"maps"
	"slices"
	"time"
)

// A Spec describes a real server with a rate limit. Each path of the server has a budget of its own.
type Spec struct {
	Name    string
	N       int64         // requests accepted per Per
	Per     time.Duration //
	Service time.Duration // how long the server works on an accepted request; 0: 2 ms
	Slots   int64         // requests that it works on at a time; 0: it limits their rate
	Refuses int           // the status of refusals; 0: requests wait in a queue instead

	program  string
	needs    string   // another program, of PostgreSQL; "": none
	proxy    bool     // has an origin behind it, which serves the requests
	args     []string // templates, as files and env are
	files    []string // in testdata, written into the server's directory
	env      []string
	settings map[string]string
}

// Rate returns how many requests per second the server accepts.
func (s Spec) Rate() float64 { return float64(s.N) / s.Per.Seconds() }

// with returns s under another name, with these pairs of names and values added to its settings.
func (s Spec) with(name string, pairs ...string) Spec {
	old := s.settings
	s.Name, s.settings = name, make(map[string]string, len(old)+len(pairs)/2)
	maps.Copy(s.settings, old)
	for i := 0; i < len(pairs); i += 2 {
		s.settings[pairs[i]] = pairs[i+1]
	}
	return s
}

// withLimit returns s with another limit.
func (s Spec) withLimit(n int64, per time.Duration) Spec {
	s.N, s.Per = n, per
	return s
}

// lasting returns s with another service time.
func (s Spec) lasting(service time.Duration) Spec {
	s.Service = service
	return s
}

// Specs returns all servers.
func Specs() (all []Spec) {
	all = append(all, nginxSpecs()...)
	all = append(all, haproxySpecs()...)
	all = append(all, nodeSpecs()...)
	all = append(all, flaskSpecs()...)
	all = append(all, poolSpecs()...)
	return append(all, otherSpecs()...)
}

// Named returns the server of this name. It panics if there is none.
func Named(name string) Spec {
	for _, s := range Specs() {
		if s.Name == name {
			return s
		}
	}
	panic(fmt.Sprintf("realserver: no server is called %q", name))
}

func nginxSpecs() []Spec {
	base := Spec{
		N: 50, Per: time.Second, Refuses: 429, program: "nginx", proxy: true, files: []string{"nginx.conf"},
		args: []string{"-c", "{{.Dir}}/nginx.conf", "-e", "{{.Dir}}/error.log"},
		settings: map[string]string{
			"Modules": "", "RetryAfter": "1", "Limit": "limit_req zone=paths;",
			"Zone": "limit_req_zone $uri zone=paths:1m rate={{.N}}r/s;",
		},
	}
	lua := base.withLimit(100, 5*time.Second).with("nginx with Lua, as GitHub, 100 per 5 s",
		"Modules", "include /etc/nginx/modules-enabled/*.conf;",
		"Zone", "lua_shared_dict windows 1m;",
		"Limit", "access_by_lua_block {"+luaWindow+"}")
	lua.Refuses = 403
	slots := base.withLimit(100, time.Second).lasting(40*time.Millisecond).with("nginx, limit_conn 4",
		"Zone", "limit_conn_zone $uri zone=paths:1m;", "Limit", "limit_conn paths 4;")
	slots.Slots = 4
	return []Spec{
		base.with("nginx, no burst"),
		base.with("nginx, burst 20 nodelay", "Limit", "limit_req zone=paths burst=20 nodelay;"),
		base.with("nginx, burst 50 delay", "Limit", "limit_req zone=paths burst=50;"),
		base.with("nginx, burst 20 nodelay, Retry-After 1",
			"Limit", "limit_req zone=paths burst=20 nodelay; error_page 429 @limited;"),
		base.withLimit(10, time.Second).with("nginx, 10/s, burst 10 nodelay, Retry-After 2",
			"Limit", "limit_req zone=paths burst=10 nodelay; error_page 429 @limited;", "RetryAfter", "2"),
		slots,
		lua,
	}
}

// luaWindow is a fixed window that begins with the first request, reported in GitHub's headers.
const luaWindow = `
	local windows, key = ngx.shared.windows, ngx.var.uri
	local used = windows:incr(key, 1, 0, {{.Seconds}})
	ngx.header["X-RateLimit-Limit"] = {{.N}}
	ngx.header["X-RateLimit-Remaining"] = math.max({{.N}} - used, 0)
	ngx.header["X-RateLimit-Reset"] = math.ceil(ngx.now() + (windows:ttl(key) or 0))
	if used > {{.N}} then
		return ngx.exit(403)
	end
`

func haproxySpecs() []Spec {
	const (
		table = "stick-table type string len 64 size 1k expire 1m store http_req_rate({{.Seconds}}s)"
		track = "\n\thttp-request track-sc0 path"
		over  = "{ sc_http_req_rate(0) gt {{.N}} }"
	)
	base := Spec{
		N: 50, Per: time.Second, Refuses: 429, program: "haproxy", proxy: true, files: []string{"haproxy.cfg"},
		args:     []string{"-db", "-f", "{{.Dir}}/haproxy.cfg"},
		settings: map[string]string{"ServerOptions": "", "Rules": table + track + "\n\thttp-request deny deny_status 429 if " + over},
	}
	queue := base.withLimit(100, time.Second).lasting(40*time.Millisecond).with("HAProxy, maxconn 4, queue",
		"Rules", "", "ServerOptions", "maxconn 4")
	queue.Refuses, queue.Slots = 0, 4
	return []Spec{
		base.with("HAProxy, accepted counted, Retry-After 1", "Rules", table+
			"\n\thttp-request return status 429 hdr Retry-After 1 if { path,table_http_req_rate(limited) ge {{.N}} }"+track),
		base.with("HAProxy, all counted, 1 s"),
		base.withLimit(500, 10*time.Second).with("HAProxy, all counted, 10 s"),
		base.with("HAProxy, all counted, tarpit 2 s", "Rules", table+track+"\n\thttp-request tarpit deny_status 429 if "+over),
		base.with("HAProxy, banned until quiet for 5 s", "Rules",
			"stick-table type string len 64 size 1k expire 5s store http_req_rate(1s),gpc0"+track+
				"\n\thttp-request sc-inc-gpc0(0) if "+over+"\n\thttp-request deny deny_status 429 if { sc_get_gpc0(0) gt 0 }"),
		queue,
	}
}

func nodeSpecs() []Spec {
	base := Spec{N: 50, Per: time.Second, Refuses: 429, program: "node", args: []string{"{{.Source}}/node/server.js",
		`{"framework":"{{.Framework}}","addr":"{{.Addr}}","token":"{{.Token}}","n":{{.N}},"window":{{.Seconds}}000,` +
			`"draft":"{{.Draft}}","service":{{.ServiceMS}}}`}}
	slow := base.withLimit(100, time.Second).lasting(10*time.Millisecond).with("node, a handler that computes for 10 ms", "Framework", "none", "Draft", "")
	slow.Refuses, slow.Slots = 0, 1
	return []Spec{
		base.with("express-rate-limit, draft-6", "Framework", "express", "Draft", "draft-6"),
		base.with("express-rate-limit, draft-7", "Framework", "express", "Draft", "draft-7"),
		base.with("express-rate-limit, draft-8", "Framework", "express", "Draft", "draft-8"),
		base.withLimit(100, 10*time.Second).with("express-rate-limit, draft-7, 100 per 10 s", "Framework", "express", "Draft", "draft-7"),
		base.with("@fastify/rate-limit", "Framework", "fastify", "Draft", ""),
		slow,
	}
}

func flaskSpecs() []Spec {
	base := Spec{N: 50, Per: time.Second, Refuses: 429, program: "gunicorn", files: []string{"limited.py"},
		args: []string{"--bind", "{{.Addr}}", "--workers", "1", "--worker-class", "gthread", "--threads", "32",
			"--keep-alive", "60", "--chdir", "{{.Dir}}", "--log-level", "warning", "limited:app"},
		env: []string{"LIMIT={{.N}} per {{.Seconds}} second", "STRATEGY={{.Strategy}}", "TOKEN={{.Token}}", "SERVICE={{.Service}}"}}
	threads := base.withLimit(100, time.Second).lasting(40*time.Millisecond).with("gunicorn, 4 threads, queue", "Strategy", "fixed-window")
	threads.args = slices.Clone(base.args)
	threads.args[slices.Index(threads.args, "32")] = "4"
	threads.env = slices.Clone(base.env)
	threads.env[0] = "LIMIT=1000000 per 1 second"
	threads.Refuses, threads.Slots = 0, 4
	return []Spec{
		threads,
		base.with("Flask-Limiter, fixed window", "Strategy", "fixed-window"),
		base.with("Flask-Limiter, moving window", "Strategy", "moving-window"),
		base.with("Flask-Limiter, elastic window", "Strategy", "fixed-window-elastic-expiry"),
	}
}

// poolSpecs are servers whose handlers wait for one of a pool.
func poolSpecs() []Spec {
	workers := Spec{Name: "Go, 8 workers, queue", N: 200, Per: time.Second, Service: 40 * time.Millisecond, Slots: 8, program: pool,
		args: []string{"-addr", "{{.Addr}}", "-token", "{{.Token}}", "-service", "{{.Service}}s", "-slots", "8"}}
	postgres := workers.withLimit(250, time.Second).with("PostgreSQL, 10 connections, queue")
	postgres.Slots, postgres.needs = 10, "postgres"
	postgres.args = append(slices.Clone(workers.args[:len(workers.args)-1]), "10", "-postgres", "{{.Dir}}")
	return []Spec{workers, postgres}
}

func otherSpecs() []Spec {
	varnish := Spec{N: 50, Per: time.Second, Refuses: 429, program: "varnishd", proxy: true, files: []string{"varnish.vcl"},
		args: []string{"-F", "-j", "none", "-a", "{{.Addr}}", "-n", "{{.Dir}}/work", "-f", "{{.Dir}}/varnish.vcl", "-s", "malloc,1m"}}
	rack := Spec{N: 50, Per: time.Second, Refuses: 429, program: "puma", files: []string{"config.ru"},
		args: []string{"--bind", "tcp://{{.Addr}}", "--threads", "32:32", "--dir", "{{.Dir}}", "--quiet", "{{.Dir}}/config.ru"},
		env:  []string{"N={{.N}}", "SECONDS={{.Seconds}}", "TOKEN={{.Token}}", "SERVICE={{.Service}}", "RACK_ENV=production"}}
	return []Spec{varnish.with("Varnish, vsthrottle, Retry-After 1"), rack.with("rack-attack, Retry-After")}
}

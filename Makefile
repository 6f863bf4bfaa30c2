# make check is for every change; make test is all that must hold on any machine with Go, make and a C compiler (for the race
# detector). .ci/run runs more.
GO ?= go
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './tools/*' -not -path '*/node_modules/*')))

NODE_SERVERS := internal/realserver/node
NODE_MODULES := $(if $(shell command -v npm),$(NODE_SERVERS)/node_modules)

.PHONY: check test servers bench bench-compare fuzz lint nethttp

check: ## vet every module; the short tests of this one, without the race detector: under a minute
	@for m in $(MODULES); do (cd $$m && $(GO) vet ./...) || exit 1; done
	@$(GO) test -short -shuffle on ./...

# Their dependencies compile for minutes, and would have to be compiled once more for the race detector.
WITHOUT_RACE := ./internal/sdktest ./examples/sdk

NOT_REAL := grep -v /internal/realserver
test: ## every module: vet, race detector, shuffled; then the long simulations without it; the examples are run by their tests
	@for m in $(MODULES); do echo "== $$m, race detector"; (cd $$m && $(GO) vet ./... && \
		$(GO) test -race -short -shuffle on -timeout 30m $$($(GO) list ./... | $(NOT_REAL))) || exit 1; done
	@echo "== this module, in full"; $(GO) test -shuffle on -timeout 30m $$($(GO) list ./... | $(NOT_REAL))
	@command -v redis-server >/dev/null && command -v redis-sentinel >/dev/null || echo "redis-server or redis-sentinel is not installed: throttleredis skips the tests that need them"
	@echo "== throttleredis, in full"; cd throttleredis && $(GO) test -shuffle on .
	@missing=; PATH="$$PATH:/usr/sbin"; for s in nginx haproxy node gunicorn varnishd puma; do command -v $$s >/dev/null || missing="$$missing $$s"; done; \
		echo "== internal/realserver, alone and without the race detector: its figures are of real time$${missing:+; left out, because not installed:$$missing}"
	@$(GO) test -shuffle on -timeout 30m ./internal/realserver

SERVERS ?=
CLIENTS ?=
LANES ?= 12
RUNS ?= 1
$(NODE_SERVERS)/node_modules: $(NODE_SERVERS)/package-lock.json
	cd $(NODE_SERVERS) && npm ci && touch node_modules

servers: $(NODE_MODULES) ## what clients get from real servers: docs/real-servers.md, in about RUNS times 5 minutes; SERVERS and CLIENTS are regular expressions
	$(GO) run ./internal/realserver/report -servers '$(SERVERS)' -clients '$(CLIENTS)' -lanes $(LANES) -runs $(RUNS) \
		$(if $(SERVERS)$(CLIENTS),,-o docs/real-servers.md)

nethttp: ## net/http's own tests, every client's transport wrapped in ours
	$(GO) run ./internal/nethttptest

FUZZTIME ?= 10s
fuzz: ## each fuzz target for FUZZTIME
	@for pkg in $$($(GO) list ./...); do \
		for f in $$($(GO) test -list '^Fuzz' $$pkg | grep '^Fuzz'); do \
			echo "== $$pkg $$f"; $(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg || exit 1; done; done

lint: export GOWORK = off
lint: ## gofmt, go fix, staticcheck, tidy
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	@for m in $(MODULES); do echo "== $$m"; (cd $$m && \
		{ test -z "$$($(GO) fix -diff ./...)" || { $(GO) fix -diff ./...; exit 1; }; } && \
		$(GO) tool -modfile=$(CURDIR)/tools/go.mod staticcheck ./... && \
		$(GO) mod tidy -diff) || exit 1; done
	@cd tools && $(GO) mod tidy -diff

BENCHTIME ?= 100ms
COUNT ?= 5
bench: ## everything next to its peers, COUNT rounds of BENCHTIME each: bench/RESULTS.md and the plots beside it, in about 15 minutes
	cd bench && $(GO) run ./report -benchtime $(BENCHTIME) -count $(COUNT)

bench-compare: COUNT = 8
bench-compare: ## what a request and the limiter cost, next to the revision BASE (or what BENCH matches)
	@GO="$(GO)" BENCHTIME=$(BENCHTIME) COUNT=$(COUNT) bench/compare $(BASE)

# make check is for every change; make test is all that must hold on any machine with Go, make and a C compiler (for the race
# detector). .ci/run runs more.
GO ?= go
MODULES := $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path './tools/*' -not -path '*/node_modules/*')))

NODE_SERVERS := internal/realserver/node
NODE_MODULES := $(if $(shell command -v npm),$(NODE_SERVERS)/node_modules)

.PHONY: check test long servers bench bench-compare fuzz lint nethttp

check: ## vet and the short tests of this module, without the examples, real servers and the race detector: about a minute
	@$(GO) vet ./...
	@$(GO) test -short -shuffle on $$($(GO) list ./... | $(NOT_REAL) | grep -v /examples/)

# What starts no goroutines (rooms_test.go keeps package sync out of it), and what has dependencies that compile for minutes,
# and would have to be compiled once more for the race detector.
WITHOUT_RACE := /internal/(aimd|jsonfinder|meter|pattern|quota|pagetest|sdktest)$$|/examples/sdk/
NOT_REAL := grep -v /internal/realserver
ALL := $(addsuffix /...,$(MODULES))

INSTALLED = PATH="$$PATH:/usr/sbin"; for s in nginx haproxy node gunicorn varnishd puma redis-server redis-sentinel promtool; do command -v $$s >/dev/null || printf ' %s' $$s; done; { command -v chromium || command -v chromium-browser || command -v google-chrome; } >/dev/null || printf ' chromium'
test: ## every module: vet, race detector, shuffled, the examples; then a few bars at real servers
	@$(GO) vet $(ALL)
	@echo "== race detector"
	@$(GO) test -race -short -shuffle on -timeout 30m $$($(GO) list $(ALL) | $(NOT_REAL) | grep -vE '$(WITHOUT_RACE)')
	@echo "== without the race detector: arithmetic, and what runs with SDKs and a browser"
	@$(GO) test -short -shuffle on $$($(GO) list $(ALL) | grep -E '$(WITHOUT_RACE)')
	@missing=$$($(INSTALLED)); echo "== real servers, without the race detector: their figures are of real time$${missing:+; left out, because not installed:$$missing}"
	@$(GO) test -short -shuffle on -timeout 30m ./internal/realserver
	@echo "left to make long: the long simulations and the other bars at real servers"

long: ## the long simulations, throttleredis in full, and every bar at real servers: about 11 minutes
	@$(GO) test -shuffle on -timeout 30m $$($(GO) list ./... ./throttleredis | $(NOT_REAL) | grep -v /examples/)
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
bench: ## everything next to its peers, COUNT rounds of BENCHTIME each: bench/RESULTS.md and the plots beside it, in about 10 minutes, and 8 more for each round
	cd bench && $(GO) run ./report -benchtime $(BENCHTIME) -count $(COUNT)

bench-compare: COUNT = 8
bench-compare: ## what a request and the limiter cost, next to the revision BASE (or what BENCH matches)
	@GO="$(GO)" BENCHTIME=$(BENCHTIME) COUNT=$(COUNT) bench/compare $(BASE)

# make check is for every change; make test is what must hold on any machine with Go, make and bash, however busy it is. The race
# detector, which needs a C compiler, and what depends on real time are in make long. .ci/run runs more.
GO ?= go
MODULES = $(sort $(patsubst %/go.mod,%,$(shell find . -name go.mod -not -path '*/node_modules/*')))

NODE_MODULES := internal/lab/realserver/node/node_modules internal/lab/heldback/node_modules

.PHONY: check test race long servers held-back node bench bench-compare fuzz lint nethttp release-check

export GO
check: ## vet and the short tests of this module, without the examples: less than a minute
	@.ci/test check

test: ## vet and the short tests of every package but those whose dependencies take minutes to compile, and the examples
	@.ci/test test

race: ## the short tests with the race detector
	@.ci/test race

long: ## the short tests with the race detector; long simulations, what depends on real time, bars at real servers, the packages with SDKs, the page in a browser
	@.ci/test long

SERVERS ?=
CLIENTS ?=
LANES ?= 12
RUNS ?= 1
$(NODE_MODULES): %/node_modules: %/package-lock.json
	cd $* && npm ci && touch node_modules

node: $(NODE_MODULES) ## what servers that run in node need

servers: $(if $(shell command -v npm),node) ## what clients get from real servers: docs/lab/real-servers.md, in about RUNS times 5 minutes; SERVERS and CLIENTS are regular expressions
	$(GO) run ./internal/lab/realserver/report -servers '$(SERVERS)' -clients '$(CLIENTS)' -lanes $(LANES) -runs $(RUNS) \
		$(if $(SERVERS)$(CLIENTS),,-o docs/lab/real-servers.md)
	$(if $(SERVERS)$(CLIENTS),,cd internal/lab/bench && $(GO) run ./realservers -runs $(RUNS))

held-back: node ## what clients get from middlewares that nothing here was designed for: docs/lab/held-back.md, in about 10 minutes
	cd internal/lab/heldback && $(GO) run . -lanes $(LANES)

nethttp: ## net/http's own tests, every client's transport wrapped in ours
	$(GO) run ./internal/lab/nethttptest

FUZZTIME ?= 10s
fuzz: ## each fuzz target for FUZZTIME; a run that ends late without a failing input is repeated once
	@for pkg in $$($(GO) list -f '{{.Dir}}' ./...); do \
		for f in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' $$pkg/*_test.go 2>/dev/null); do \
			echo "== $$pkg $$f"; run="$(GO) test -run ^$$ -fuzz ^$$f$$ -fuzztime $(FUZZTIME) $$pkg"; \
			out=$$($$run 2>&1) || { case "$$out" in *"Failing input"*) false ;; *"context deadline exceeded"*) out=$$($$run 2>&1) ;; *) false ;; esac; } \
				|| { echo "$$out"; exit 1; }; \
			echo "$$out" | tail -n 1; done; done

lint: ## gofmt and tidy; go fix and staticcheck, except of packages with SDKs, whose dependencies they would read for minutes
	@test -z "$$(gofmt -l .)" || { gofmt -d .; exit 1; }
	@for m in $(MODULES); do (cd $$m && GOWORK=off $(GO) mod tidy -diff) || exit 1; done
	@packages="$$(.ci/packages) ./internal/lab/pagetest" && $(GO) fix -diff $$packages && \
		$$(GOWORK=off $(GO) tool -modfile=tools/go.mod -n staticcheck) $$packages

VERSION ?= v0.1.0
release-check: ## all that RELEASING.md asks for before VERSION is tagged
	@.ci/release $(VERSION)

BENCHTIME ?= 100ms
COUNT ?= 5
bench: ## everything next to its peers, COUNT rounds of BENCHTIME each: internal/lab/bench/RESULTS.md and the plots beside it, in about 10 minutes, and 8 more for each round
	cd internal/lab/bench && $(GO) run ./report -benchtime $(BENCHTIME) -count $(COUNT)

bench-compare: COUNT = 8
bench-compare: ## what a request and the limiter cost, next to the revision BASE (or what BENCH matches)
	@GO="$(GO)" BENCHTIME=$(BENCHTIME) COUNT=$(COUNT) internal/lab/bench/compare $(BASE)

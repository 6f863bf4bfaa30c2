# make test is all that must hold on any machine with Go, make and a C compiler (for the race detector).
GO ?= go
MODULES := . bench internal/sdktest

.PHONY: test bench bench-compare fuzz lint nethttp

test: ## every module: vet, race detector, shuffled; the examples are run by their tests
	@PATH="$$PATH:/usr/sbin"; for s in nginx haproxy; do command -v $$s >/dev/null || \
		echo "no $$s: internal/realserver runs throttletest's imitation in its place"; done
	@for m in $(MODULES); do echo "== $$m"; (cd $$m && $(GO) vet ./... && \
		$(GO) test -race -shuffle on $$($(GO) list ./... | grep -v /internal/realserver$$)) || exit 1; done
	@echo "== internal/realserver, alone and without the race detector: its figures are of real time"; $(GO) test -shuffle on ./internal/realserver

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

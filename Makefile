# Every tool and its version, in this one place. Tools are installed under
# .tools/ when a target first needs them, and again when a version changes.
GOLANGCILINT_VERSION := v2.15.0
ACTIONLINT_VERSION   := v1.7.12
GOVULNCHECK_VERSION  := v1.8.0
NFPM_VERSION         := v2.43.0

GOLANGCILINT := .tools/golangci-lint@$(GOLANGCILINT_VERSION)/golangci-lint
ACTIONLINT   := .tools/actionlint@$(ACTIONLINT_VERSION)/actionlint
GOVULNCHECK  := .tools/govulncheck@$(GOVULNCHECK_VERSION)/govulncheck
NFPM         := .tools/nfpm@$(NFPM_VERSION)/nfpm

SHELL       := /bin/bash
# Debian's proxies are there, outside the PATH of some users.
export PATH := $(PATH):/usr/sbin
.SHELLFLAGS := -euo pipefail -c
# As in GOBUILD, so that tests, linters and builds share compiled packages.
export CGO_ENABLED ?= 0
export GOFLAGS     ?= -trimpath
.DEFAULT_GOAL := help

VERSION  ?= $(shell git describe --tags --match 'v[0-9]*' --always --dirty 2>/dev/null || echo dev)
MAINS    := ./standalone/cmd/rejoin ./services/ingest/cmd/ingest ./services/sse-edge/cmd/sse-edge ./services/janitor/cmd/janitor ./services/bridge/cmd/bridge
# The module path of this repository; make modpath changes it.
MODPATH  := $(shell sed -n 's/^module //p' go.mod)
# Without -buildvcs=false a build fails where git refuses to answer: as root in the clone of another user.
GOBUILD  := CGO_ENABLED=0 go build -trimpath -buildvcs=false -ldflags '-s -w -X $(MODPATH)/shared/daemon.Version=$(VERSION)'
# The address of this repository, for packages: the module path, when it has a host.
URL      ?= $(if $(findstring .,$(MODPATH)),https://$(MODPATH))
# Where make install puts files; DESTDIR goes before it, for packages.
PREFIX   ?= /usr/local
# The directories of the workspace's modules; the first one is the root, with code that only
# this repository uses: the standalone program, deploy/, examples/, e2e/ and bench/.
MODULES  = $(shell go list -m -f '{{.Dir}}')

FUZZTIME ?= 10s
# Where make vuln gets the known vulnerabilities from: a URL, or file:///… of a copy.
GOVULNDB ?= https://vuln.go.dev
RESTARTS ?= all
KILLS    ?= 2
RATE     ?= 1000
# For make sim: the number of schedules, and the first seed; 0: from the clock.
SEEDS    ?= 1000
SEED     ?= 0
# For make powercut: the number of power cuts.
IMAGES   ?= 30

.PHONY: help
help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

.PHONY: run
run: ## Build bin/rejoin, the standalone program, and run it with ARGS="…".
	$(GOBUILD) -o bin/ ./standalone/cmd/rejoin
	bin/rejoin $(ARGS)

.PHONY: build
build: ## Build static binaries of all programs into bin/.
	$(GOBUILD) -o bin/ $(MAINS)

# Only rejoin: other packages own names such as bridge (iproute2).
.PHONY: install
install: ## Build rejoin, and install it with its shell completion below PREFIX (/usr/local).
	install -d '$(DESTDIR)$(PREFIX)'/{bin,share/bash-completion/completions,share/zsh/site-functions,share/fish/vendor_completions.d}
	umask 022; \
	$(GOBUILD) -o '$(DESTDIR)$(PREFIX)/bin/' ./standalone/cmd/rejoin; \
	cd '$(DESTDIR)$(PREFIX)'; \
	bin/rejoin completion bash >share/bash-completion/completions/rejoin; \
	bin/rejoin completion zsh >share/zsh/site-functions/_rejoin; \
	bin/rejoin completion fish >share/fish/vendor_completions.d/rejoin.fish

# Packages wait for most of their time: for servers, clients and clocks.
AT_ONCE := $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))

# Tests are not debugged, and without DWARF a program links in two thirds of the time: the tests
# themselves, and the programs that they build.
test test-short race: export GOFLAGS += -ldflags=-w

.PHONY: test
test: ## Run the tests of every module; install the programs that they run (Debian, Ubuntu). TESTFLAGS are those of go test.
	@e2e/programs.sh
	go test -timeout 40m -p $(AT_ONCE) -parallel 8 $(TESTFLAGS) work

# Packages whose tests start programs, own or third-party.
LONG := ^$(MODPATH)/(bench|deploy|e2e|examples|standalone)|/rejoinjs$$

.PHONY: test-short
test-short: ## Run the tests that start no programs and need only Go: about a minute.
	go test -timeout 10m -parallel 16 $(TESTFLAGS) $$(go list work | grep -vE '$(LONG)')

# Left to `make test`: third-party programs run the commands of documents and examples; the browser does
# the work in pages; builds have no races of ours; NATS checks its permissions; a cluster that starts
# as a whole elects for ten seconds; publishing waits for three after a program was killed; attacks
# run step by step, or are measured, with the detector's share; logs are searched body by body.
NORACE := ^(TestAttack|TestConsumers_|TestPermissions_|TestPrivileges_|TestReplies_|TestImports_|TestHeaders_Act|TestMCP_Kills|TestGoClient_ClusterServersAreKilled|TestProgramLog_|TestAdminPage|TestPlayground|TestBrowser|TestJavaScriptClient|TestTLS_Browser|TestEras|TestOpenAPI|TestModpath|TestKubernetes|TestInstall|TestExamples|TestDocument|TestConformance|TestRelease|TestClusterRestore|TestGeneration_AllServersRestart)

.PHONY: race
race: export CGO_ENABLED = 1
# Else every program waits for a second at its end, for reports of its other goroutines.
race: export GORACE = atexit_sleep_ms=50
race: ## Run the tests of every module with the race detector, without those of pages, documents, examples, attacks and whole clusters.
	@e2e/programs.sh gcc
	go test -race -vet=off -timeout 40m -parallel 8 -skip '$(NORACE)' $(TESTFLAGS) work

.PHONY: sim
sim: ## Run SEEDS (1000) schedules of the simulation, from SEED on, and a quarter as many with groups: the whole system in virtual time, under faults.
	go test -count=1 -run '^TestSimulation' -v -timeout 20m $(TESTFLAGS) ./e2e -seeds=$(SEEDS) -seed=$(or $(filter-out 0,$(SEED)),$$(date +%s))

.PHONY: attack
attack: ## Attack the standalone program in one way after the other, and print the cost of each; with TLS=1 over TLS and HTTP/2.
	go test -count=1 -run '^TestAttack' -v -timeout 20m $(TESTFLAGS) ./e2e $(if $(TLS),-tls) | grep -E '^(=== RUN|ok|FAIL|panic|--- )|ATTACK|\.go:[0-9]+:'

.PHONY: natskills
natskills: ## Kill NATS 60 times within a second of its start, under publishers and subscribers: no event is lost, and no client receives a gap.
	go test -count=1 -run '^TestGoClient_NATSIsKilled$$' -v -timeout 20m $(TESTFLAGS) ./e2e -nats-kills=60

.PHONY: mcpkills
mcpkills: ## Kill edges, bridges and NATS during 500 MCP calls of 50 steps and 20 s, then again while calls begin, then with a cluster of NATS, and print their outcomes.
	go test -count=1 -run '^TestMCP_Kills$$' -v -timeout 20m -parallel 1 $(TESTFLAGS) ./e2e -mcp-calls=500 -mcp-steps=50 -mcp-pause=400ms
	go test -count=1 -run '^TestMCP_Kills$$' -v -timeout 20m -parallel 1 $(TESTFLAGS) ./e2e -mcp-calls=500 -mcp-young
	go test -count=1 -run '^TestMCP_Kills$$' -v -timeout 20m -parallel 1 $(TESTFLAGS) ./e2e -mcp-cluster

.PHONY: powercut
powercut: ## Cut the power IMAGES (30) times: copies of a disk under load are started and read. Needs root and loop devices.
	go test -tags powercut -run '^TestPowerCut$$' -count=1 -v -timeout 40m $(TESTFLAGS) ./e2e -images=$(IMAGES)

.PHONY: e2e-docker
e2e-docker: ## Bring up deploy/ on this machine's Docker engine, one machine and a cluster, and test it; RESTARTS=all or first of each kind, KILLS=n, RATE=events a second.
	go test -tags docker -run '^TestDocker' -count=1 -v -timeout 40m $(TESTFLAGS) ./e2e -restarts=$(RESTARTS) -kills=$(KILLS) -rate=$(RATE)

.PHONY: fuzz
fuzz: ## Run every fuzz target of every module for FUZZTIME (10s) each.
	@targets=$$(grep -rHo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]*' . | sed 's/:func /:/' | sort -u); \
	[ -n "$$targets" ] || { echo 'no fuzz targets found' >&2; exit 1; }; \
	for target in $$targets; do \
		file=$${target%:*}; name=$${target##*:}; \
		echo "== $$name in $$(dirname "$$file")"; \
		go test -run '^$$' -fuzz "^$$name\$$" -fuzztime '$(FUZZTIME)' "$$(dirname "$$file")"; \
	done

.PHONY: lint
lint: $(GOLANGCILINT) $(ACTIONLINT) ## Check formatting, run all linters, and check that every module builds alone.
	@$(GOLANGCILINT) fmt --diff || { echo 'run make fmt' >&2; exit 1; }
	go vet -tags docker,powercut ./e2e
	$(ACTIONLINT) -shellcheck= -pyflakes=
	$(GOLANGCILINT) run $(addsuffix /...,$(MODULES))
	@for module in $(MODULES); do echo "== alone: $$module"; \
		(cd "$$module" && GOWORK=off go list -export -test -deps ./... >/dev/null); done

.PHONY: fmt
fmt: $(GOLANGCILINT) ## Format the code.
	$(GOLANGCILINT) fmt

.PHONY: bench
bench: ## Measure the whole system; CASES="…" and REPS=n choose cases and repetitions.
	go run ./bench

.PHONY: tidy
tidy: ## Tidy every module's go.mod and sync the workspace.
	@for module in $(MODULES); do echo "== tidy $$module"; (cd "$$module" && GOWORK=off go mod tidy); done
	go work sync

.PHONY: deps
deps: ## List newer versions of the dependencies; UPDATE=yes takes them, PATCH=yes only patches.
ifeq ($(UPDATE)$(PATCH),)
	@go list -m -u -f '{{if and .Update (not .Indirect)}}{{.Path}} {{.Version}} → {{.Update.Version}}{{end}}' all | sed '/^$$/d'
else
	@for module in $(MODULES); do echo "== update $$module"; \
		(cd "$$module" && GOWORK=off go get -u$(if $(PATCH),=patch) -t ./...); done
	@# An update in one module moves the others that need it.
	$(MAKE) tidy
	go work sync
	$(MAKE) tidy
endif

.PHONY: vuln
vuln: $(GOVULNCHECK) ## Look for known vulnerabilities in the code that every module calls (database: GOVULNDB).
	@failed=; for module in $(MODULES); do echo "== govulncheck $$module"; \
		(cd "$$module" && GOWORK=off $(CURDIR)/$(GOVULNCHECK) -db '$(GOVULNDB)' -test ./...) || failed=yes; \
	done; [ -z "$$failed" ]

.PHONY: release
release: $(NFPM) ## Build archives of all programs for PLATFORMS, Debian packages (of MAINTAINER), container images (of REGISTRY; PUSH=yes pushes them) and the npm package into dist/, with licenses, SBOMs and checksums.
	go run ./deploy/release -version '$(VERSION)' -time "$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct)}" -out dist -nfpm '$(CURDIR)/$(NFPM)' \
		-url '$(URL)' $(if $(MAINTAINER),-maintainer '$(MAINTAINER)') $(if $(PLATFORMS),-platforms '$(PLATFORMS)') \
		$(if $(REGISTRY),-registry '$(REGISTRY)') $(if $(PUSH),-push)

# For the test of releases.
.PHONY: nfpm
nfpm: $(NFPM)
	@echo '$(CURDIR)/$(NFPM)'

.PHONY: modpath
modpath: ## Give all modules another path, NEW=example.org/you/rejoin; with TAG=v0.1.0 they require each other in that version.
	go run ./deploy/modpath $(if $(TAG),-version '$(TAG)') '$(NEW)'

.PHONY: clean
clean: ## Remove binaries, archives and tools.
	rm -rf bin dist .tools

$(GOLANGCILINT):
	GOWORK=off GOBIN='$(CURDIR)/$(@D)' go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCILINT_VERSION)

$(ACTIONLINT):
	GOWORK=off GOBIN='$(CURDIR)/$(@D)' go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)

$(GOVULNCHECK):
	GOWORK=off GOBIN='$(CURDIR)/$(@D)' go install golang.org/x/vuln/cmd/govulncheck@$(GOVULNCHECK_VERSION)

$(NFPM):
	GOWORK=off GOBIN='$(CURDIR)/$(@D)' go install github.com/goreleaser/nfpm/v2/cmd/nfpm@$(NFPM_VERSION)

# Everything that is done with this repository. "make help" lists it.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BUILD    := $(CURDIR)/build
BIN      := $(BUILD)/bin
TOOLS    := $(BUILD)/tools
# Without the clone's directory in what is compiled, a fresh clone finds it in the cache.
export GOFLAGS := $(sort $(GOFLAGS) -trimpath)
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
COMMIT   ?= $(shell git rev-parse HEAD 2>/dev/null)
LDFLAGS  := -s -w -X github.com/tinkerbell/stack/pkg/daemon.version=$(VERSION) \
	-X github.com/tinkerbell/stack/pkg/daemon.commit=$(COMMIT)
PROGRAMS := broadcast-init dhcp-relay stack-proxy stack-boots stack-doctor stack-lb

# make demo
MACHINE ?=
FAMILY  ?= 4
CLASSIC ?=
KEEP    ?=
COUNT   ?=

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: $(addprefix build-,$(PROGRAMS)) ## build the programs into build/bin

.PHONY: $(addprefix build-,$(PROGRAMS))
$(addprefix build-,$(PROGRAMS)): build-%:
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/$* ./cmd/$*

.PHONY: ci
ci: ## all that CI runs on a fresh clone: lint, test, chart, images, and the chart on a real Kubernetes
	@.ci/run

.PHONY: demo
demo: ## boot machines through the pod from the modern Tinkerbell (MACHINE=bios,uefi or go; CLASSIC=1: from Smee and Hegel; COUNT=50: so many in Go at once; FAMILY=6: by IPv6 alone, also uefi-http; KEEP=1 leaves the lab up); needs root
	@echo "building the demo (some minutes the first time: Tinkerbell comes with it)"
	@cd test/e2e && go build -o $(BIN)/demo ./cmd/demo
	@$(BIN)/demo -machines '$(MACHINE)' -count '$(or $(COUNT),1)' -family '$(FAMILY)' $(if $(filter-out 0 no false,$(CLASSIC)),-classic) $(if $(filter-out 0 no false,$(KEEP)),-keep)

.PHONY: test
test: deps $(TOOLS)/gotestsum ## all tests; without root it says what it leaves out
	@GOTESTSUM=$(TOOLS)/gotestsum scripts/test

# A cache of its own for each checkout: the linter's would speak of files in others that are gone.
.PHONY: lint
lint: export GOLANGCI_LINT_CACHE := $(BUILD)/lint-cache
lint: $(TOOLS)/golangci-lint ## formatting and static checks
	$(TOOLS)/golangci-lint run ./...
	cd test/e2e && $(TOOLS)/golangci-lint run --config ../../.golangci.yml ./...
	go mod verify >/dev/null && go mod tidy -diff
	scripts/generated
	scripts/signed-off

.PHONY: generate
generate: ## make what is generated: tables of settings, the routes' schema, the chart's schema and README
	go generate ./...
	cd tools/helm && go generate ./...

.PHONY: bench-go
bench-go: ## the Go benchmarks of the hot paths
	go test -run '^$$' -bench . -benchmem ./pkg/...

.PHONY: bench bench-deps
bench: bench-deps ## all four benches, some 25 minutes: rows in build/bench; needs root
	@$(MAKE) --no-print-directory bench-relay bench-datagram bench-proxy bench-edge
bench-deps:
	@scripts/deps bench

.PHONY: fuzz
FUZZTIME ?= 30s
fuzz: ## fuzz every parser for FUZZTIME each (30s)
	@scripts/fuzz $(FUZZTIME)

# As it is released, since it is no part of what is built; asks vuln.go.dev.
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
.PHONY: vulnerabilities
vulnerabilities: ## known vulnerabilities of modules and compiler that the programs reach; needs the internet
	go run $(GOVULNCHECK) ./cmd/...

.PHONY: tinkerbell
tinkerbell: ## build the modern Tinkerbell, before which the demo and the tests stand, once into the user's cache (some four minutes)
	@cd test/e2e && go run ./cmd/lab build

.PHONY: tools
tools: $(TOOLS)/gotestsum ## build what runs the tests, and have git sign commits off
	@git config --get core.hooksPath >/dev/null || git config core.hooksPath scripts/hooks || true

.PHONY: deps
deps: ## install the Debian packages that the tests use, saying why, and axe-core; needs root
	@scripts/deps test
	@scripts/axe

.PHONY: clean
clean: ## remove build/
	rm -rf $(BUILD)

-include make/*.mk

$(TOOLS)/golangci-lint: tools/go.mod
	@echo "building golangci-lint (some minutes the first time)"
	go build -C tools -o $@ github.com/golangci/golangci-lint/v2/cmd/golangci-lint
$(TOOLS)/gotestsum: tools/go.mod
	go build -C tools -o $@ gotest.tools/gotestsum

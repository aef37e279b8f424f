# What is done to this tree, one target each; `make help` lists them.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 30s
# Flags of the server that `make run` starts, such as RUNFLAGS='--secure-port 0'.
RUNFLAGS ?=
# More flags for go test, such as TESTFLAGS='-race -run TestName'.
TESTFLAGS ?=
CLUSTER_DIR := $(CURDIR)/.cache/cluster

# The Kubernetes whose API machinery this is, 1.37.2 for k8s.io/apiserver v0.37.2, comes first in the version:
# clients and the API machinery itself compare it. The date is that of the commit, so that the same commit
# gives the same program.
KUBERNETES = $(patsubst v0.%,1.%,$(shell go list -m -f '{{.Version}}' k8s.io/apiserver))
COMMIT = $(shell git rev-parse HEAD 2>/dev/null)
BUILD_DATE = $(shell TZ=UTC0 git log -1 --date=format-local:%Y-%m-%dT%H:%M:%SZ --format=%cd 2>/dev/null)
TREE_STATE = $(if $(findstring -dirty,$(VERSION)),dirty,clean)
VERSION_PKG := k8s.io/component-base/version
LDFLAGS = -X $(VERSION_PKG).gitVersion=v$(KUBERNETES)+knative-apiserver.$(VERSION) \
	-X $(VERSION_PKG).gitMajor=$(word 1,$(subst ., ,$(KUBERNETES))) \
	-X $(VERSION_PKG).gitMinor=$(word 2,$(subst ., ,$(KUBERNETES))) \
	-X $(VERSION_PKG).gitCommit=$(COMMIT) \
	-X $(VERSION_PKG).gitTreeState=$(TREE_STATE) \
	-X $(VERSION_PKG).buildDate=$(BUILD_DATE)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/knative-apiserver
	go build -ldflags '$(LDFLAGS)' -o bin/knative-apiserver ./cmd/knative-apiserver

.PHONY: run
run: build ## Run the standalone server on ./knative-apiserver-data with a sample, until interrupted
	@hack/run.sh $(RUNFLAGS)

.PHONY: test
test: test-unit test-integration ## Run all tests, those through a real kube-apiserver too

.PHONY: test-unit
test-unit: ## Run the tests that need nothing but Go
	go test $(TESTFLAGS) ./cmd/... ./hack/... ./pkg/...
	go -C hack/cluster test $(TESTFLAGS) ./...

# Never from the test cache: go does not see that a program it runs has changed.
.PHONY: test-integration
test-integration: build ## Run the tests against bin/knative-apiserver and a real kube-apiserver
	go -C hack/cluster run . build
	go test -count=1 -timeout 30m $(TESTFLAGS) ./test/...

.PHONY: generate
generate: ## Regenerate what is generated from pkg/apis
	hack/update-codegen.sh

.PHONY: verify
verify: ## Check generated code, module files, format and go vet, changing nothing
	hack/verify-codegen.sh
	hack/verify-go.sh

.PHONY: lint
lint: ## Run the linters of .golangci.yml
	hack/golangci-lint.sh run ./...
	cd hack/cluster && ../golangci-lint.sh run ./...

.PHONY: conformance
conformance: ## List the clauses of the specifications with their tests
	@go run ./hack/conformance

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (30s)
	hack/fuzz.sh $(FUZZTIME)

.PHONY: bench
bench: build ## Run the benchmarks; those of gateway and broker need wrk (apt-get install wrk)
	go test -run '^$$' -bench . -p 1 -timeout 30m ./test/bench/... ./pkg/dataplane/...

.PHONY: cluster
cluster: ## Start a Kubernetes control plane in .cache/cluster and print its kubeconfig
	@go -C hack/cluster run . up --dir $(CLUSTER_DIR)

.PHONY: cluster-down
cluster-down: ## Stop that control plane and delete its data
	@go -C hack/cluster run . down --dir $(CLUSTER_DIR)

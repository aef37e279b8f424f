# Development tasks. `make help` lists the targets.

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME ?= 30s
# Flags of the server that `make run` starts, such as RUNFLAGS='--secure-port 0'.
RUNFLAGS ?=
# More flags for go test, such as TESTFLAGS='-race -run TestName'.
TESTFLAGS ?=
# More flags for make image-push, such as PUSHFLAGS=--insecure.
PUSHFLAGS ?=
CLUSTER_DIR := $(CURDIR)/.cache/cluster

# With this tag, k8s.io/apimachinery keeps equal managed fields of objects once: a tenth of the memory of a server with many objects.
ifeq (,$(findstring fieldsv1string,$(GOFLAGS)))
export GOFLAGS := $(GOFLAGS) -tags=fieldsv1string
endif

# The Kubernetes whose API machinery this is, 1.37.2 for k8s.io/apiserver v0.37.2, comes first in the version:
# clients and the API machinery itself compare it. The date is the date of the commit, so that the same commit
# builds the same program.
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

.PHONY: plugin
plugin: ## Build bin/kubectl-knative, a plugin of kubectl, with its completion
	CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o bin/kubectl-knative ./cmd/kubectl-knative
	cp cmd/kubectl-knative/kubectl_complete-knative bin/

# The image runs as an unprivileged user on a read-only root. Its date, like the program's, is the commit's.
IMAGE_FLAGS = --binary bin/image/knative-apiserver --title knative-apiserver --version '$(VERSION)' \
	--revision '$(COMMIT)' --created '$(BUILD_DATE)' --port 8443,8080,8445,8081,8082,8446,8444

.PHONY: image-binary
image-binary:
	CGO_ENABLED=0 GOOS=linux go build -trimpath -ldflags '-s -w $(LDFLAGS)' -o bin/image/knative-apiserver ./cmd/knative-apiserver

.PHONY: image
image: image-binary ## Build bin/knative-apiserver-image.tar, an OCI image, and its bill of materials
	go run ./hack/image $(IMAGE_FLAGS) --reference 'localhost/knative-apiserver:$(VERSION)' --output bin/knative-apiserver-image.tar

.PHONY: image-push
image-push: image-binary ## Build the image and push it: REF=host:port/name:tag [PUSHFLAGS=--insecure]; prints its digest
	@$(if $(REF),,$(error REF must name where to push to, as in make image-push REF=host:port/name:tag))
	@go run ./hack/image $(IMAGE_FLAGS) --push '$(REF)' $(PUSHFLAGS)

.PHONY: run
run: build ## Run the standalone server on ./knative-apiserver-data with a sample, until interrupted
	@hack/run.sh $(RUNFLAGS)

.PHONY: test
test: test-unit test-integration ## Run all tests, those through a real kube-apiserver too

.PHONY: test-unit
test-unit: ## Run the tests that only need Go
	go test -timeout 30m $(TESTFLAGS) ./cmd/... ./hack/... ./pkg/...
	go -C hack/cluster test $(TESTFLAGS) ./...

# Never from the test cache: go does not see that a program it runs has changed. make e2e and make bench have the other packages of
# test, which would only be linked here.
.PHONY: test-integration
test-integration: build ## Run the tests against bin/knative-apiserver and a real kube-apiserver
	go -C hack/cluster run . build
	go test -count=1 -timeout 60m $(TESTFLAGS) $$(go list ./test/... | grep -vE '/test/(bench|e2e)(/|$$)')

.PHONY: repeat
repeat: ## Run the tests of each package ten times alone, with busy processors and on one processor: [PACKAGES=./pkg/...] [COUNT=10]
	@COUNT=$(or $(COUNT),10) hack/repeat.sh $(PACKAGES)

.PHONY: generate
generate: ## Regenerate the code that is generated from pkg/apis, and the PrometheusRule
	hack/update-codegen.sh
	hack/update-monitoring.sh

.PHONY: verify
verify: ## Check generated code and pages, module files, format and tracked files, changing nothing
	hack/verify-codegen.sh
	hack/update-monitoring.sh --verify
	hack/verify-go.sh
	go run ./hack/conformance -verify

.PHONY: lint
lint: ## Check the wording and run the linters of .golangci.yml
	go run ./hack/language
	hack/golangci-lint.sh run ./...
	cd hack/certmanager && ../golangci-lint.sh run ./...
	cd hack/cluster && ../golangci-lint.sh run ./...
	cd hack/otelcol && ../golangci-lint.sh run ./...
	cd hack/pebble && ../golangci-lint.sh run ./...

.PHONY: conformance
conformance: ## List the clauses of the specifications with their tests, and write docs/conformance.md
	@go run ./hack/conformance

.PHONY: simulate-scaling
simulate-scaling: ## Print how the autoscaler scales traces of requests, compared with the algorithm of Knative
	go test -count=1 -v -run TestQuality ./pkg/dataplane/serving/autoscaler

.PHONY: simulate
simulate: ## Run what grows with a fleet at the size of docs/scale.md with the real code: [SCALE=100] percent
	SCALE=$(or $(SCALE),100) go test -count=1 -v -timeout 30m ./test/scale

.PHONY: simulate-events
simulate-events: ## Run random histories of events and faults in virtual time: [HISTORIES=10000] [FIRST=1]
	go test -count=1 -timeout 30m -run TestHistories ./pkg/dataplane/eventing/simulation -histories $(or $(HISTORIES),10000) -first $(or $(FIRST),1)

.PHONY: fuzz
fuzz: ## Run every fuzz target for FUZZTIME (30s)
	hack/fuzz.sh $(FUZZTIME)

.PHONY: flood
flood: build ## Attack every entry of a server in a container of 512 MiB; its memory must stay below
	FLOOD=1 go test -count=1 -v -timeout 15m $(TESTFLAGS) ./test/flood

.PHONY: bench
bench: SHELL := /bin/bash -o pipefail
bench: build ## Run the benchmarks, as root on a cluster too, and print the table of docs/performance.md (apt-get install wrk nginx-light haproxy nghttp2-client)
	{ go test -run '^$$' -bench . -p 1 -timeout 60m ./test/bench/... ./pkg/dataplane/... && hack/bench-installed.sh; } | go run ./hack/benchtable

# A few minutes. The rows that need a cluster with a node are left out.
.PHONY: bench-gates
bench-gates: SHELL := /bin/bash -o pipefail
bench-gates: export EVENTING_BENCH_WINDOW := 4s
bench-gates: export EVENTING_BENCH_ROUNDS := 1
bench-gates: build ## Run a short version of the benchmarks in the table, and fail if one misses its gate
	go -C hack/cluster run . build >/dev/null
	go test -run '^$$' -bench '^Benchmark(Throughput|Latency|H2C|GRPC|WebSocket|OneTrigger|TenTriggers|API)$$' -short -p 1 -timeout 20m \
		./test/bench ./test/bench/serving ./test/bench/eventing | go run ./hack/benchtable -gate

.PHONY: chaos
chaos: build ## Cause faults under load and check the recorded history: [DURATION=2m] [SEED=number] [E2E_CLUSTER=file: on that cluster too]
	CHAOS_DURATION='$(or $(DURATION),2m)' CHAOS_SEED='$(SEED)' go test -v -count=1 -timeout 3h $(TESTFLAGS) ./test/chaos/...

.PHONY: cluster
cluster: ## Start Kubernetes with a node in .cache/cluster, as root, and print its kubeconfig
	@go -C hack/cluster run . up --node --dir $(CLUSTER_DIR)

.PHONY: cluster-down
cluster-down: ## Stop that cluster, delete its data and leave nothing of it on the machine
	@go -C hack/cluster run . down --dir $(CLUSTER_DIR)

.PHONY: install
install: ## Install the server, or upgrade to it, on the cluster that kubectl reaches: IMAGE=host/name[:tag|@digest] [VARIANT=default|combined|single|split] [DOMAIN=example.org|sslip.io]
	@hack/install.sh '$(IMAGE)' $(VARIANT)
	@$(if $(DOMAIN),hack/domain.sh '$(DOMAIN)')

.PHONY: uninstall
uninstall: ## Remove the server from the cluster that kubectl reaches, with all objects of its kinds
	@hack/uninstall.sh

.PHONY: e2e
e2e: ## Run the tests that need pods on a real cluster of this machine, with the server installed there; needs root
	@hack/e2e.sh

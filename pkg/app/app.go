// Package app builds the server from its configuration: it constructs the modules, connects them, and runs them beside the API
// server. Aggregated and standalone servers have different modules of the same kinds.
package app

import (
	"context"
	"net"
	"path/filepath"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/memorylimit"
)

// SystemNamespace is the default namespace of the server, its Services and the ConfigMaps of its settings.
const SystemNamespace = "knative-system"

// stopTimeout is the time that in-flight requests and deliveries have to finish when the server stops.
const stopTimeout = 10 * time.Second

// EventingConfig configures Eventing.
type EventingConfig struct {
	// Listener accepts events, TLS events over TLS. TLS is nil without HTTPS.
	Listener, TLS net.Listener
	// Log configures the event log, except for its directory, its installation and its cluster.
	Log eventlog.Options
	// MaxEventBytes is the maximum size of the body of an event request.
	MaxEventBytes int64
	// TraceRetention is how long records of events are kept for the subresource trace; 0 records nothing. TraceMaxBytes bounds their size.
	TraceRetention time.Duration
	TraceMaxBytes  int64
	// DeadLetterRetention is how long the dead letter store keeps dead letters; 0 drops undeliverable events without a dead letter sink.
	// DeadLetterMaxBytes bounds the dead letters of a namespace.
	DeadLetterRetention time.Duration
	DeadLetterMaxBytes  int64
	// ArchiveMaxRetention bounds how long archives of Brokers keep accepted events; 0 disables archives. ArchiveMaxBytes bounds the archives of
	// a namespace.
	ArchiveMaxRetention time.Duration
	ArchiveMaxBytes     int64
}

// storesDeadLetters reports whether undeliverable events go to the dead letter store. Eventing may be nil.
func (c *EventingConfig) storesDeadLetters() bool { return c != nil && c.DeadLetterRetention > 0 }

// EventLogDir returns the directory of the embedded event log in the data directory of a server.
func EventLogDir(dataDir string) string { return filepath.Join(dataDir, "events") }

// traceDir returns the directory of the records of events in the data directory of a server.
func traceDir(dataDir string) string { return filepath.Join(dataDir, "traces") }

// metricsRegistry registers and collects metrics.
type metricsRegistry interface {
	metrics.Gatherer
	MustRegister(all ...metrics.Registerable)
	CustomMustRegister(all ...metrics.StableCollector)
}

// processMetrics is the metricsRegistry of the process, which /metrics serves.
type processMetrics struct{}

// MustRegister implements metricsRegistry.
func (processMetrics) MustRegister(all ...metrics.Registerable) { legacyregistry.MustRegister(all...) }

// CustomMustRegister implements metricsRegistry.
func (processMetrics) CustomMustRegister(all ...metrics.StableCollector) {
	legacyregistry.CustomMustRegister(all...)
}

// Gather implements metrics.Gatherer.
func (processMetrics) Gather() ([]*dto.MetricFamily, error) {
	return legacyregistry.DefaultGatherer.Gather()
}

// newBudget returns the memory budget of the process. Each event request fits into it. A limit of 0 means flow.DefaultLimit.
func newBudget(registry metricsRegistry, limit int64, eventing *EventingConfig) *flow.Budget {
	if limit == 0 {
		limit = flow.DefaultLimit()
	}
	maxBody := int64(0)
	if eventing != nil {
		maxBody = eventing.MaxEventBytes
	}
	budget := flow.NewBudget(limit, ingress.LargestRequest(maxBody))
	registry.CustomMustRegister(budget.Metrics())
	return budget
}

// startModules starts the modules of a server that accepts traffic once all are ready.
func startModules(ctx context.Context, runner *lifecycle.Runner, stages []lifecycle.Stage) error {
	if err := runner.Start(ctx, stages...); err != nil {
		return err
	}
	go memorylimit.Trim(ctx)
	klog.FromContext(ctx).Info("Accepting requests and events")
	return nil
}

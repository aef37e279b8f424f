package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/trace"
	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/revisionlog"
)

// standaloneDomain is that of public host names: it resolves to this machine by itself.
const standaloneDomain = "localhost"

const (
	// stopTimeout is how long requests under way may go on when the server ends.
	stopTimeout = 10 * time.Second
	// accessLogMegabytes is the size at which the access log begins anew, accessLogBackups how many old ones
	// are kept.
	accessLogMegabytes, accessLogBackups = 100, 3
)

// StandaloneOptions are what Standalone needs to know.
type StandaloneOptions struct {
	// DataDir is where instances are recorded and their logs kept.
	DataDir string
	// ConfigDir has the ConfigMaps of the settings; empty means the ConfigMaps in SystemNamespace.
	ConfigDir string
	// ClusterDomain is the DNS domain that cluster-local host names end in, as they would in a cluster.
	ClusterDomain string
	// AccessLog is the path of the access log; "-" stands for standard error.
	AccessLog string
	// Gateway takes the requests to revisions; nil leaves out Serving.
	Gateway net.Listener
	// Broker takes events; nil leaves out Eventing.
	Broker *BrokerOptions
	// MemoryBudget bounds the bytes that requests, events and deliveries hold; 0 stands for flow.DefaultLimit.
	MemoryBudget int64
	// Destinations says which addresses events may be sent to.
	Destinations egress.Options
	// Stop is called when a part has ended that should not have, since the rest is of no use without it. It has
	// the context of Start end. See Wait.
	Stop func()
}

// BrokerOptions are what Eventing needs to know.
type BrokerOptions struct {
	Listener net.Listener
	// Log says where events are kept. Its Dir and Installation are chosen by Standalone and Aggregated.
	Log eventlog.Options
	// MaxEventBytes bounds the body of a request.
	MaxEventBytes int64
	// Tracing has the spans of events and deliveries; nil for none.
	Tracing trace.TracerProvider
}

// newBudget returns the memory budget of the process. Any request to the broker fits into it.
func newBudget(limit int64, broker *BrokerOptions) *flow.Budget {
	if limit == 0 {
		limit = flow.DefaultLimit()
	}
	maxBody := int64(0)
	if broker != nil {
		maxBody = broker.MaxEventBytes
	}
	budget := flow.NewBudget(limit, ingress.LargestRequest(maxBody))
	legacyregistry.CustomMustRegister(budget.Metrics())
	return budget
}

// Standalone is Knative on this machine: revisions run as processes.
type Standalone struct {
	options  StandaloneOptions
	settings *settings.Store
	faults   *faults
	budget   *flow.Budget
	logs     revisionlog.Source
	parts
}

// NewStandalone reads the settings and follows them until ctx ends. An error tells that the directory cannot
// be read; what is wrong in it is reported by Events.
func NewStandalone(ctx context.Context, options StandaloneOptions) (*Standalone, error) {
	s := &Standalone{
		options:  options,
		settings: settings.NewStore(settings.Default(standaloneDomain)),
		faults:   newFaults(SystemNamespace),
		budget:   newBudget(options.MemoryBudget, options.Broker),
		parts:    parts{stop: options.Stop},
	}
	if options.ConfigDir == "" {
		return s, nil
	}
	if err := s.settings.WatchDir(ctx, options.ConfigDir, s.faults); err != nil {
		return nil, fmt.Errorf("reading --config-dir: %w", err)
	}
	return s, nil
}

// APISettings are the settings in force that the API depends on.
func (s *Standalone) APISettings() servingv1.Settings { return s.settings.API() }

// EventingSettings are the settings in force that new Brokers depend on.
func (s *Standalone) EventingSettings() eventingv1.Settings { return s.settings.Eventing() }

// MessagingSettings are the settings in force that new Channels depend on.
func (s *Standalone) MessagingSettings() messagingv1.Settings { return s.settings.Messaging() }

// Logs are those of revisions, once Start has returned; nil where none run.
func (s *Standalone) Logs() revisionlog.Source { return s.logs }

// Addresses tell where the gateway and the broker are reached.
func (s *Standalone) Addresses() []string {
	var addresses []string
	if s.options.Gateway != nil {
		addresses = append(addresses, "gateway http://"+net.JoinHostPort(standaloneDomain, strconv.Itoa(port(s.options.Gateway))))
	}
	if s.options.Broker != nil {
		addresses = append(addresses, "broker http://"+loopback(s.options.Broker.Listener))
	}
	return addresses
}

func port(listener net.Listener) int { return listener.Addr().(*net.TCPAddr).Port }

// loopback returns the address by which this machine reaches a listener.
func loopback(listener net.Listener) string {
	address := *listener.Addr().(*net.TCPAddr)
	if address.IP.IsUnspecified() {
		address.IP = net.IPv4(127, 0, 0, 1)
	}
	return address.String()
}

// Start starts everything, through the API server that config reaches as the controllers, and returns once
// requests and events are taken. Everything ends with ctx; see Wait.
func (s *Standalone) Start(ctx context.Context, config *rest.Config) error {
	core, err := newCoreKinds(config)
	if err != nil {
		return err
	}
	// The controllers write to existing Namespaces only.
	if err := core.ensureNamespaces(ctx); err != nil {
		return err
	}
	recorder, _, err := host.NewRecorder(ctx, config, "knative-apiserver")
	if err != nil {
		return err
	}
	s.faults.recordBy(recorder)
	s.faults.lead(true)
	if s.options.ConfigDir == "" {
		if err := s.settings.WatchConfigMaps(ctx, core.kubernetes, SystemNamespace, s.faults); err != nil {
			return err
		}
	}
	clients, err := newClients(config, recorder)
	if err != nil {
		return err
	}
	var parts []part
	if s.options.Gateway != nil {
		serving, err := s.serving(ctx, clients, core)
		if err != nil {
			return err
		}
		parts = append(parts, serving)
	}
	if s.options.Broker != nil {
		eventing, err := s.eventing(ctx, clients)
		if err != nil {
			return err
		}
		parts = append(parts, eventing...)
	}
	collector, err := clients.garbageCollector(core)
	if err != nil {
		return err
	}
	namespaces, err := core.namespaces()
	if err != nil {
		return err
	}
	clients.informers.Start(ctx.Done())
	core.informers.Start(ctx.Done())
	s.background(ctx, func(ctx context.Context) { namespaces.Run(ctx, workers) })
	s.background(ctx, func(ctx context.Context) { collector.Run(ctx, workers) })
	return s.start(ctx, parts...)
}

// serving makes the part that runs Services.
func (s *Standalone) serving(ctx context.Context, clients *clients, core *coreKinds) (part, error) {
	var serving *serving
	processes, err := process.New(process.Options{
		Objects:      storedObjects{core.kubernetes},
		Wake:         func(key workload.Key) { serving.autoscaler.Activate(key) },
		DataDir:      filepath.Join(s.options.DataDir, "revisions"),
		Logger:       klog.FromContext(ctx).WithName("processes"),
		DrainTimeout: stopTimeout,
	})
	if err != nil {
		return part{}, err
	}
	s.logs = processes.Logs()
	log := openAccessLog(s.options.AccessLog)
	serving, err = newServing(ctx, servingOptions{
		clients:     clients,
		runtime:     processes,
		settings:    s.settings,
		accessLog:   log,
		budget:      s.budget,
		urls:        route.URLs{ClusterDomain: s.options.ClusterDomain, Port: port(s.options.Gateway), PublicAddress: true},
		stopTimeout: stopTimeout,
	})
	if err != nil {
		return part{}, err
	}
	if err := core.notify(processes.ObjectChanged); err != nil {
		return part{}, err
	}
	prepare := func(ctx context.Context, run func(func(context.Context))) error {
		run(processes.Run)
		return serving.prepare(ctx, run)
	}
	return part{prepare, func(ctx context.Context) error {
		// Nothing is written any more when serve returns.
		defer closeLog(ctx, log)
		return serving.gateway.Serve(ctx, s.options.Gateway)
	}}, nil
}

// eventing makes the parts that deliver events.
func (s *Standalone) eventing(ctx context.Context, clients *clients) ([]part, error) {
	o := s.options.Broker
	log := o.Log
	log.Dir = EventLogDir(s.options.DataDir)
	var err error
	if log.Installation, err = installation(s.options.DataDir); err != nil {
		return nil, err
	}
	host := loopback(o.Listener)
	address := func(key eventing.Key) duckv1.Addressable { return addressOf(host, key) }
	eventing, err := newEventing(ctx, eventingOptions{
		// Nobody else uses it.
		allowCrossNamespace: true,
		budget:              s.budget,
		guard:               s.guard(),
		discloses:           sender.LocalHosts,
		clients:             clients, clusterDomain: s.options.ClusterDomain, log: log, address: address, maxBody: o.MaxEventBytes, tracing: o.Tracing, stopTimeout: stopTimeout,
	})
	if err != nil {
		return nil, err
	}
	return eventing.parts(o.Listener), nil
}

// guard returns the Guard of a server on this machine, where local subscribers are on loopback.
func (s *Standalone) guard() *egress.Guard {
	o := s.options.Destinations
	o.AllowLoopback = true
	if at := s.options.Broker.Listener.Addr().(*net.TCPAddr).AddrPort().Addr().Unmap(); !at.IsUnspecified() {
		// Brokers and Channels are destinations too.
		o.Except = append(o.Except, at)
	}
	o.Register = legacyregistry.MustRegister
	return egress.New(o)
}

// installation returns the name by which the event logs of this data directory are told from those of others in the
// same NATS.
func installation(dataDir string) (string, error) {
	path := filepath.Join(dataDir, "installation")
	name, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		name = []byte(uuid.NewUUID())
		err = os.WriteFile(path, name, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("naming this installation: %w", err)
	}
	return string(name), nil
}

// openAccessLog returns the access log of a path, which rotates by size and is opened when it is first written to; "-"
// stands for standard error.
func openAccessLog(path string) io.WriteCloser {
	if path == "-" {
		return standardError{os.Stderr}
	}
	return &lumberjack.Logger{Filename: path, MaxSize: accessLogMegabytes, MaxBackups: accessLogBackups}
}

func closeLog(ctx context.Context, log io.Closer) {
	if err := log.Close(); err != nil {
		klog.FromContext(ctx).Error(err, "Closing the access log failed")
	}
}

// standardError stays open for all others who write to it.
type standardError struct{ io.Writer }

func (standardError) Close() error { return nil }

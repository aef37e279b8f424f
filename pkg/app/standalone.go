package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	apitokens "github.com/knative-apiserver/knative-apiserver/pkg/apiserver/standalone"
	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tokens"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	gatewaycerts "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventmatch"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process"
)

// standaloneDomain is the suffix of public host names, which resolves to this machine everywhere.
const standaloneDomain = "localhost"

// StandaloneConfig configures a server without a host cluster: Revisions run as processes of this machine.
type StandaloneConfig struct {
	// API configures the API server, and the data directory.
	API *apiserver.StandaloneOptions
	// ConfigDir is the directory of the ConfigMaps of the settings. Empty reads the ConfigMaps of SystemNamespace.
	ConfigDir string
	// ClusterDomain is the suffix of cluster-local host names.
	ClusterDomain string
	// AccessLog is the path of the access log; "-" means stderr.
	AccessLog string
	// StandardOnly makes net/http forward all requests to Revisions.
	StandardOnly bool
	// Proxies are the networks of trusted proxies in front of the gateway.
	Proxies []netip.Prefix
	// Gateway accepts requests to Revisions. Nil disables Serving.
	Gateway net.Listener
	// GatewayTLS accepts requests over TLS. Nil disables HTTPS.
	GatewayTLS net.Listener
	// GatewayHTTP3 accepts requests by HTTP/3. Nil disables it.
	GatewayHTTP3 net.PacketConn
	// Console serves the console with the permissions of the administrator. Nil disables it.
	Console net.Listener
	// Eventing runs Eventing. Nil disables it.
	Eventing *EventingConfig
	// MemoryBudget limits the bytes that requests, events and deliveries hold. 0 means flow.DefaultLimit.
	MemoryBudget int64
	// Destinations decides to which addresses events may be sent.
	Destinations egress.Options
	// Tracing is where traces go unless config-observability selects it. The zero value exports none.
	Tracing settings.Tracing
}

// Run runs the server until ctx is canceled and in-flight work has finished. It writes one line to out when the server is ready.
func (c StandaloneConfig) Run(ctx context.Context, out io.Writer) error {
	ctx, shutdown := context.WithCancel(ctx)
	defer shutdown()
	s := newStandalone(ctx, c, processMetrics{}, shutdown)
	// Requests and events that end while the server stops have the last spans.
	defer s.telemetry.Stop() //nolint:contextcheck,nolintlint // it flushes after the context has ended
	foundation := lifecycle.NewRunner(stopTimeout, shutdown)
	if err := foundation.Start(ctx, s.foundation()); err != nil {
		return err
	}
	err := c.API.RunServer(ctx, out, s.dependencies(), s.addresses)
	shutdown()
	return errors.Join(err, s.runner.Wait(), foundation.Wait())
}

// standalone are the components of a server without a host cluster.
type standalone struct {
	StandaloneConfig
	registry metricsRegistry
	runner   *lifecycle.Runner
	settings *settings.Store
	faults   *faults
	budget   *flow.Budget
	// telemetry exports traces and metrics.
	telemetry *telemetry.Telemetry
	// reviews verifies callers of Services and senders of events.
	reviews *reviews.Reviews
	// accountTokens has the tokens of Triggers and Subscriptions.
	accountTokens *apitokens.AccountTokens
	// console is nil before Start, and if it is disabled.
	console *consoleModule
}

var _ apiserver.Components = (*standalone)(nil)

func newStandalone(ctx context.Context, c StandaloneConfig, registry metricsRegistry, shutdown func()) *standalone {
	s := &standalone{
		StandaloneConfig: c,
		registry:         registry,
		// Requests, events and processes have stopTimeout one after the other.
		runner:   lifecycle.NewRunner(3*stopTimeout, shutdown),
		settings: settings.NewStore(settings.Default(standaloneDomain)),
		faults:   newFaults(SystemNamespace),
		budget:   newBudget(registry, c.MemoryBudget, c.Eventing),

		accountTokens: apitokens.NewAccountTokens(clock.RealClock{}),
	}
	s.telemetry = newTelemetry(ctx, registry, s.settings, c.Tracing, "")
	return s
}

// onlyAPI reports whether the server runs neither Serving nor Eventing, and so has no settings.
func (s *standalone) onlyAPI() bool { return s.Gateway == nil && s.Eventing == nil }

// foundation returns the modules that the API server needs.
func (s *standalone) foundation() lifecycle.Stage {
	if s.onlyAPI() || s.ConfigDir == "" {
		return nil
	}
	return lifecycle.Stage{&settingsModule{store: s.settings, faults: s.faults, dir: s.ConfigDir}}
}

// dependencies returns what the API server uses.
func (s *standalone) dependencies() apiserver.Dependencies {
	d := apiserver.Dependencies{ClusterDomain: s.ClusterDomain, Collect: s.registry.CustomMustRegister, Memory: s.budget, Components: s}
	d.Reads, d.Writes = newCalls(s.registry.MustRegister, 1)
	if !s.onlyAPI() {
		d.Settings, d.DeadLetters = s.settings, s.Eventing.storesDeadLetters()
	}
	return d
}

// addresses returns the addresses of the gateway, the broker and the console.
func (s *standalone) addresses() []string {
	var addresses []string
	if s.Gateway != nil {
		addresses = append(addresses, "gateway http://"+net.JoinHostPort(standaloneDomain, strconv.Itoa(port(s.Gateway))))
	}
	if s.Eventing != nil {
		addresses = append(addresses, "broker http://"+loopback(s.Eventing.Listener))
	}
	if s.console != nil {
		addresses = append(addresses, "console "+s.console.address())
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

// Ready implements apiserver.Components.
func (s *standalone) Ready() error { return s.runner.Ready() }

// Start implements apiserver.Components.
func (s *standalone) Start(ctx context.Context, server *apiserver.Server) error {
	server.SetMatcher(&eventmatch.Matcher{})
	config := server.ControllersConfig()
	core, err := newCoreKinds(config)
	if err != nil {
		return err
	}
	if s.onlyAPI() {
		namespaces, err := core.newNamespaces(server.Stored())
		if err != nil {
			return err
		}
		return s.runner.Start(ctx, lifecycle.Stage{namespaces, &informers{factories: []informerFactory{core.informers}}})
	}
	recorder, _, err := host.NewRecorder(ctx, config, "knative-apiserver")
	if err != nil {
		return err
	}
	s.faults.recordBy(recorder)
	s.faults.lead(true)
	clients, err := newClients(config, server.Stored(), recorder)
	if err != nil {
		return err
	}
	m, err := s.newModules(ctx, server, clients, core)
	if err != nil {
		return err
	}
	stages := m.stages()
	if s.Console != nil {
		if s.console, err = newConsoleModule(s.Console, s.API.Kubeconfig()); err != nil {
			return err
		}
		stages = append(stages, lifecycle.Stage{s.console})
	}
	if err := startModules(ctx, s.runner, stages); err != nil {
		return err
	}
	if m.serving != nil {
		server.SetGateway(m.serving.traffic.gateway)
		server.SetLogs(m.serving.workload.Logs())
		server.SetExplainer(newExplainer(m.serving.serving.autoscaler, nil))
	}
	server.SetObjectMetrics(newObjectMetrics(s.registry, nil))
	if m.eventing != nil {
		server.SetMatcher(m.eventing.matcher)
		server.SetTails(m.eventing.tails)
		if m.eventing.traces != nil {
			server.SetTraces(m.eventing.traces)
		}
		if m.eventing.deadLetters != nil {
			server.SetDeadLetters(m.eventing.deadLetters)
		}
	}
	return nil
}

// standaloneModules are the modules of a standalone server.
type standaloneModules struct {
	namespaces *namespaces
	// settings is nil if they are read from a directory.
	settings  *settingsModule
	informers *informers
	garbage   *controllers
	// serving and eventing are nil if they are disabled.
	serving  *processModules
	eventing *eventingModules
}

// newModules constructs the modules.
func (s *standalone) newModules(ctx context.Context, server *apiserver.Server, clients *clients, core *coreKinds) (m standaloneModules, err error) {
	if m.namespaces, err = core.newNamespaces(server.Stored()); err != nil {
		return m, err
	}
	if s.ConfigDir == "" {
		m.settings = &settingsModule{store: s.settings, faults: s.faults, client: core.kubernetes}
	}
	m.informers = &informers{factories: []informerFactory{clients.informers, core.informers}}
	s.reviews = reviews.New(reviews.Options{Tokens: server.TokenReviews().With(s.accountTokens), Access: server.AccessReviews(), Register: s.registry.MustRegister})
	if s.Gateway != nil {
		if m.serving, err = s.newServing(ctx, clients, core); err != nil {
			return m, err
		}
	}
	if s.Eventing != nil {
		accounts := senderaccount.NewInformer(core.metadata)
		m.informers.informers = append(m.informers.informers, accounts)
		if m.eventing, err = s.newEventing(ctx, clients, core, accounts); err != nil {
			return m, err
		}
	}
	collector, err := clients.garbageCollector(core)
	m.garbage = &controllers{name: "garbage", all: []*reconciler.Controller{collector}}
	return m, err
}

// stages returns the modules in the order of their start. Controllers write to existing namespaces only. The gateway accepts requests
// before the Triggers are known, and stops after events have been delivered, maybe through it. What the gateway does not need starts after it.
func (m *standaloneModules) stages() []lifecycle.Stage {
	knowing := lifecycle.Stage{m.namespaces}
	if m.settings != nil {
		knowing = append(knowing, m.settings)
	}
	knowing = append(knowing, m.informers)
	if m.eventing != nil && m.eventing.authority != nil {
		knowing = append(knowing, m.eventing.authority)
	}
	stages := []lifecycle.Stage{knowing}
	if m.serving != nil {
		var reconciling lifecycle.Stage
		if m.serving.certificates != nil {
			reconciling = append(reconciling, m.serving.certificates)
		}
		stages = append(stages, append(reconciling, m.serving.processes, m.serving.serving), lifecycle.Stage{m.serving.traffic, m.serving.serving.children})
	}
	if m.eventing != nil {
		stages = append(stages, lifecycle.Stage{m.eventing.streams, m.eventing.consumers}, lifecycle.Stage{m.eventing.broker})
	}
	return append(stages, lifecycle.Stage{m.garbage})
}

// processModules are Serving with Revisions as processes.
type processModules struct {
	workload *process.Runtime
	// certificates is nil if the gateway does not serve HTTPS.
	certificates *hostCertificates
	processes    *processes
	serving      *serving
	traffic      *traffic
}

// newServing returns the modules of Serving.
func (s *standalone) newServing(ctx context.Context, clients *clients, core *coreKinds) (*processModules, error) {
	activations := &activations{}
	workload, err := process.New(process.Options{
		Objects:      storedObjects{core.kubernetes},
		Activate:     activations.Activate,
		DataDir:      filepath.Join(s.API.DataDir, "revisions"),
		Logger:       klog.FromContext(ctx).WithName("processes"),
		DrainTimeout: stopTimeout,
	})
	if err != nil {
		return nil, err
	}
	if err := core.notify(workload.ObjectChanged); err != nil {
		return nil, err
	}
	log := openAccessLog(s.AccessLog)
	store := &gatewaycerts.Store{}
	listeners, httpsPort := 1, 0
	if s.GatewayTLS != nil {
		listeners, httpsPort = 2, port(s.GatewayTLS)
	}
	gateway := newGateway(gatewayOptions{
		registry: s.registry, settings: s.settings, budget: s.budget, tracing: s.telemetry.Tracing(), activations: activations, drained: workload.Drained, accessLog: log, standardOnly: s.StandardOnly, proxies: s.Proxies,
		reviews: s.reviews, listeners: listeners, httpsPort: httpsPort, certificates: store, stopTimeout: stopTimeout,
	})
	urls := route.URLs{ClusterDomain: s.ClusterDomain, Port: port(s.Gateway), TLSPort: httpsPort, PublicAddress: true}
	var certificates *hostCertificates
	if s.GatewayTLS != nil {
		certificates = s.newHostCertificates(ctx, core, store)
		urls.Authority = func() string { return string(certificates.authority.Bundle()) }
	}
	serving, err := newServing(ctx, servingOptions{
		registry: s.registry, clients: clients, settings: s.settings, workload: workload, gateway: gateway, activations: activations,
		urls: urls, certificates: certificates, namespaces: core.informer(namespaceResource), faults: s.faults,
	})
	if err != nil {
		return nil, err
	}
	return &processModules{
		workload: workload, certificates: certificates, processes: &processes{workload: workload}, serving: serving,
		traffic: &traffic{gateway: gateway, listener: s.Gateway, tls: s.GatewayTLS, http3: s.GatewayHTTP3, certificates: store, accessLog: log},
	}, nil
}

// newEventing returns the modules of Eventing.
func (s *standalone) newEventing(ctx context.Context, clients *clients, core *coreKinds, accounts cache.SharedIndexInformer) (*eventingModules, error) {
	config := *s.Eventing
	config.Log.Dir = EventLogDir(s.API.DataDir)
	var err error
	if config.Log.Installation, err = installation(s.API.DataDir); err != nil {
		return nil, err
	}
	address := loopback(config.Listener)
	var secure *secureIngress
	if config.TLS != nil {
		secure = s.secureIngress(ctx, config.TLS)
	}
	return newEventing(ctx, eventingOptions{
		EventingConfig: config, registry: s.registry, clients: clients, clusterDomain: s.ClusterDomain,
		settings: s.settings, tracing: s.telemetry.Tracing(), reviews: s.reviews, dataDir: s.API.DataDir,
		accounts: senderaccount.Source{Client: core.kubernetes.CoreV1(), Informer: accounts},
		tokens:   tokens.New(tokens.Options{Requester: s.accountTokens, Register: s.registry.MustRegister}),
		plain:    func(key eventing.Key) string { return urlOf(addressHTTP, address, key) }, secure: secure, core: core.kubernetes, faults: s.faults,
		configMaps: core.informer(configMapResource),
		// The server has one user.
		allowCrossNamespace: true,
		budget:              s.budget, guard: s.guard(), discloses: sender.LocalHosts,
	})
}

// secureIngress returns the broker's listener with TLS, whose certificate an authority of its own issues.
func (s *standalone) secureIngress(ctx context.Context, listener net.Listener) *secureIngress {
	authority := certs.NewHostAuthority(certs.HostOptions{Dir: filepath.Join(s.API.DataDir, "pki", "broker"), Logger: klog.FromContext(ctx).WithName("broker-certificates")})
	ips := []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	if own := listener.Addr().(*net.TCPAddr).IP; !own.IsUnspecified() && !own.IsLoopback() {
		ips = append(ips, own)
	}
	return &secureIngress{
		host: loopback(listener),
		authority: func() []byte {
			authority.Await(ctx)
			return authority.Bundle()
		},
		subscribe: authority.Subscribe, certificate: authority.ServerCertificate(ips, standaloneDomain), run: authority.Run,
	}
}

// guard returns the Guard of a server with subscribers on this machine.
func (s *standalone) guard() *egress.Guard {
	o := s.Destinations
	o.AllowLoopback = true
	if at := s.Eventing.Listener.Addr().(*net.TCPAddr).AddrPort().Addr().Unmap(); !at.IsUnspecified() {
		// Brokers and Channels are destinations too.
		o.Except = append(o.Except, at)
	}
	o.Register = s.registry.MustRegister
	return egress.New(o)
}

// installation returns the name by which event logs of several data directories in the same NATS are distinguished.
func installation(dataDir string) (string, error) {
	path := filepath.Join(dataDir, "installation")
	name, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		name = []byte(uuid.NewUUID())
		err = os.WriteFile(path, name, 0o600)
	}
	if err != nil {
		return "", fmt.Errorf("name this installation: %w", err)
	}
	return string(name), nil
}

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/gateway"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventmatch"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/objectmetrics"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry"
)

// publicDomain is the suffix of public host names of Routes unless config-domain specifies one.
const publicDomain = "example.com"

// longestRequest is the time that in-flight requests have to finish when the server stops: the longest timeout of a Revision.
const longestRequest = 10 * time.Minute

// AggregatedConfig configures a server that extends a host cluster: Revisions run as its Pods.
type AggregatedConfig struct {
	// API configures the API server, and the client of the host cluster.
	API apiserver.CompletedOptions
	// ClusterDomain is the DNS domain of the host cluster.
	ClusterDomain string
	// Certificates configures certificates that the server issues itself. Nil issues none.
	Certificates *CertificatesConfig
	// Replica configures the server as one of several replicas, which requires Certificates. Nil means no peers.
	Replica *ReplicaConfig
	// Serving runs Serving. Nil leaves it to other replicas.
	Serving *ServingConfig
	// Eventing runs Eventing. Nil leaves it to other replicas.
	Eventing *EventingConfig
	// MemoryBudget limits the bytes that requests, events and deliveries hold. 0 means flow.DefaultLimit.
	MemoryBudget int64
	// AllowCrossNamespace allows references to all other namespaces.
	AllowCrossNamespace bool
	// Destinations decides which addresses tenants may name.
	Destinations egress.Options
	// Tracing is where traces of requests and events go unless config-observability selects it. The zero value exports none.
	Tracing settings.Tracing
}

// ServingConfig configures Serving.
type ServingConfig struct {
	// Public and TLS accept requests from outside the cluster, Internal requests of Pods, Drain requests of preStop hooks. They are nil
	// if other replicas run the gateway. TLS is nil without HTTPS.
	Public, TLS, Internal, Drain net.Listener
	// HTTP3 accepts requests by HTTP/3 from outside the cluster. Nil disables it.
	HTTP3 net.PacketConn
	// AccessLog is the path of the access log; "-" means stderr. Empty disables it.
	AccessLog string
	// StandardOnly makes net/http forward all requests.
	StandardOnly bool
	// Proxies are the networks of trusted proxies in front of the gateway.
	Proxies []netip.Prefix
	// ProxyProtocol is true if trusted proxies speak the PROXY protocol on Public and TLS.
	ProxyProtocol bool
}

// Run runs the server until ctx is canceled and in-flight work has finished.
func (c AggregatedConfig) Run(ctx context.Context) error {
	ctx, shutdown := context.WithCancel(ctx)
	defer shutdown()
	a, err := newAggregated(ctx, c, shutdown)
	if err != nil {
		return err
	}
	// Requests and events that end while the server stops have the last spans.
	defer a.telemetry.Stop() //nolint:contextcheck,nolintlint // it flushes after the context has ended
	foundation := lifecycle.NewRunner(stopTimeout, shutdown)
	if err := foundation.Start(ctx, a.foundation()); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, a.runner.Retire)()
	err = c.API.RunServer(ctx, a.dependencies())
	shutdown()
	return errors.Join(err, a.runner.Wait(), foundation.Wait())
}

// aggregated are the components of a server that extends a host cluster.
type aggregated struct {
	AggregatedConfig
	registry metricsRegistry
	runner   *lifecycle.Runner
	// hostConfig is the configuration of clients of the host cluster, builtIn the one for Kubernetes' own kinds.
	hostConfig, builtIn *rest.Config
	host                kubernetes.Interface
	// writer is like host, but rejects writes of what this replica does not own.
	writer   kubernetes.Interface
	settings *settings.Store
	faults   *faults
	budget   *flow.Budget
	guard    *egress.Guard
	// telemetry exports traces and metrics.
	telemetry *telemetry.Telemetry
	// reviews verifies callers of Services and senders of events.
	reviews *reviews.Reviews
	// certificates is nil without certificates of its own, replica without peers.
	certificates replicaCertificates
	replica      *replica
	// gateway is nil if other replicas run it.
	gateway *gateway.Gateway
	// autoscaler is nil without Serving.
	autoscaler *autoscaler.Loop
	// eventing is nil if this replica runs no broker.
	eventing *eventingModules
	// objectMetrics reads the metrics of all replicas.
	objectMetrics *objectmetrics.Reader
	// members is nil without a replica that issues its certificates by issuer.
	members *members
	issuer  *certs.Manager
}

var _ apiserver.Components = (*aggregated)(nil)

// newAggregated constructs what the API server depends on. Nothing runs yet.
func newAggregated(ctx context.Context, c AggregatedConfig, shutdown func()) (*aggregated, error) {
	config, err := c.API.HostConfig()
	if err != nil {
		return nil, err
	}
	registry := processMetrics{}
	a := &aggregated{
		AggregatedConfig: c,
		registry:         registry,
		hostConfig:       config,
		builtIn:          host.BuiltIn(config),
		runner:           lifecycle.NewRunner(longestRequest+stopTimeout, shutdown),
		settings:         settings.NewStore(settings.Default(publicDomain)),
		faults:           newFaults(c.API.SystemNamespace),
		budget:           newBudget(registry, c.MemoryBudget, c.Eventing),
	}
	a.telemetry = newTelemetry(ctx, registry, a.settings, c.Tracing, c.API.SystemNamespace)
	if err := a.join(ctx); err != nil {
		return nil, err
	}
	a.builtIn.QPS = -1
	if a.host, err = kubernetes.NewForConfig(a.builtIn); err != nil {
		return nil, fmt.Errorf("create client of the host cluster: %w", err)
	}
	if a.writer, err = kubernetes.NewForConfig(a.guarded(a.builtIn)); err != nil {
		return nil, fmt.Errorf("create client of the host cluster: %w", err)
	}
	a.objectMetrics = newObjectMetrics(registry, a.replica)
	a.reviews = reviews.New(reviews.Options{
		Tokens: a.host.AuthenticationV1().TokenReviews(), Access: a.host.AuthorizationV1().SubjectAccessReviews(), Register: registry.MustRegister,
	})
	a.guard, err = newGuard(registry, c.Destinations, a.builtIn, a.replica)
	return a, err
}

// join constructs the certificates and the replica.
func (a *aggregated) join(ctx context.Context) error {
	if a.Certificates == nil {
		return nil
	}
	namespace := a.API.SystemNamespace
	options := certs.Options{
		Namespace: namespace, ClusterDomain: a.ClusterDomain,
		Register: a.registry.MustRegister, Logger: klog.FromContext(ctx).WithName("certificates"),
	}
	if a.Replica == nil {
		_, err := a.issue(options)
		return err
	}
	election, err := newElection(a.hostConfig, namespace, *a.Replica)
	if err != nil {
		return err
	}
	if a.Certificates.Dir != "" {
		a.certificates = &mountedCertificate{Mounted: certs.NewMounted(a.Certificates.Dir, clock.RealClock{}, options.Logger)}
	} else {
		options.Leading = election.Leading
		issuing, err := a.issue(options)
		if err != nil {
			return err
		}
		issuing.leads = a.Replica.Leads
		a.members = &members{
			MembersConfig: a.Replica.Members, podName: a.Replica.PodName, podIP: a.Replica.PodIP,
			namespace: namespace, clusterDomain: a.ClusterDomain,
		}
	}
	a.replica, err = newReplica(a.hostConfig, namespace, *a.Replica, election, a.certificates.PeerTLS(certs.GatewayName))
	return err
}

// issue constructs the certificates of a server that issues them.
func (a *aggregated) issue(options certs.Options) (*certificates, error) {
	issuing, err := newCertificates(*a.Certificates, a.hostConfig, options)
	if err != nil {
		return nil, err
	}
	a.certificates, a.issuer = issuing, issuing.Manager
	return issuing, nil
}

// foundation returns the modules that the API server needs.
func (a *aggregated) foundation() lifecycle.Stage {
	var stage lifecycle.Stage
	if a.certificates != nil {
		stage = append(stage, a.certificates)
	}
	return append(stage, &settingsModule{store: a.settings, faults: a.faults, client: a.host})
}

// dependencies returns what the API server uses.
func (a *aggregated) dependencies() apiserver.Dependencies {
	d := apiserver.Dependencies{
		Settings: a.settings, ClusterDomain: a.ClusterDomain, Collect: a.registry.CustomMustRegister, Memory: a.budget, Components: a,
		DeadLetters: a.Eventing.storesDeadLetters(),
	}
	replicas := 1
	if a.members != nil {
		replicas = a.members.Replicas
	}
	d.Reads, d.Writes = newCalls(a.registry.MustRegister, replicas)
	if a.Certificates != nil && a.Certificates.Serving {
		d.ServingCertificate = a.certificates.ServingCertificate()
	}
	if a.members != nil {
		d.StartEtcd = func(ctx context.Context) (*etcd.Embedded, error) {
			return a.members.startEtcd(ctx, a.host, a.issuer, a.API.DataDir)
		}
	}
	return d
}

// Ready implements apiserver.Components.
func (a *aggregated) Ready() error { return a.runner.Ready() }

// Start implements apiserver.Components.
func (a *aggregated) Start(ctx context.Context, server *apiserver.Server) error {
	server.SetMatcher(&eventmatch.Matcher{})
	config := a.hostConfig
	if !a.API.NoAPI {
		config = server.ControllersConfig()
	}
	recorder, _, err := host.NewRecorder(ctx, a.builtIn, "knative-apiserver")
	if err != nil {
		return err
	}
	a.faults.recordBy(recorder)
	if a.replica == nil {
		a.faults.lead(true)
	} else {
		a.replica.election.Subscribe(a.faults.lead)
	}
	clients, err := newClients(a.guarded(config), a.stored(server), recorder)
	if err != nil {
		return err
	}
	stages, err := a.modules(ctx, clients)
	if err != nil {
		return err
	}
	switch {
	case a.gateway != nil:
		server.SetGateway(a.gateway)
	case a.replica != nil:
		server.SetGateway(&gateway.Remote{Gateways: a.replica.Gateways(), Forward: a.replica.Transport()})
	}
	if a.autoscaler != nil || a.replica != nil {
		server.SetExplainer(newExplainer(a.autoscaler, a.replica))
	}
	server.SetObjectMetrics(a.objectMetrics)
	if a.eventing != nil {
		server.SetMatcher(a.eventing.matcher)
		server.SetTails(a.eventing.tails)
		if a.eventing.traces != nil {
			server.SetTraces(a.eventing.traces)
		}
		if a.eventing.deadLetters != nil {
			server.SetDeadLetters(a.eventing.deadLetters)
		}
	}
	if err := startModules(ctx, a.runner, stages); err != nil {
		return err
	}
	return nil
}

// modules returns the modules in the order of their start. Peers forward to this replica once its controllers know everything, and
// deliveries begin once it knows which streams it owns.
func (a *aggregated) modules(ctx context.Context, clients *clients) ([]lifecycle.Stage, error) {
	services, err := hostservice.NewInformer(a.host)
	if err != nil {
		return nil, err
	}
	shared := &informers{factories: []informerFactory{clients.informers}}
	if a.Serving != nil || a.Eventing != nil {
		shared.informers = []cache.SharedIndexInformer{services}
	}
	knowing, reconciling, accepting := lifecycle.Stage{shared}, lifecycle.Stage{}, lifecycle.Stage{}
	if a.replica != nil {
		knowing = append(knowing, newFollowing(a.replica))
	}
	if a.Serving != nil {
		namespaces, err := newNamespacesInformer(a.builtIn)
		if err != nil {
			return nil, err
		}
		shared.informers = append(shared.informers, namespaces)
		m, err := a.newServing(ctx, clients, services, namespaces)
		if err != nil {
			return nil, err
		}
		if m.certificates != nil {
			reconciling = append(reconciling, m.certificates)
		}
		reconciling = append(reconciling, m.pods, m.serving, m.serving.children)
		if m.traffic != nil {
			accepting = append(accepting, m.traffic)
		}
	}
	if a.Eventing != nil {
		objects, err := metadata.NewForConfig(a.builtIn)
		if err != nil {
			return nil, fmt.Errorf("create client of metadata: %w", err)
		}
		accounts := senderaccount.NewInformer(objects)
		shared.informers = append(shared.informers, accounts)
		m, err := a.newEventing(ctx, clients, services, accounts)
		if err != nil {
			return nil, err
		}
		a.eventing = m
		reconciling = append(reconciling, m.streams, m.consumers)
		accepting = append(accepting, m.broker)
	}
	if a.replica != nil {
		if a.Replica.Leads {
			a.replica.server.HandleAll(membership.RegistrarElement, &membership.Registrar{
				Client: a.host, Namespace: a.API.SystemNamespace, PodLabel: gatewayLabel, Installation: gatewayComponent, Clock: clock.RealClock{},
			})
		}
		reconciling = append(reconciling, &joined{replica: a.replica})
	}
	return []lifecycle.Stage{knowing, reconciling, accepting}, nil
}

// stored returns the resources that informers of this process read without requests: none if it only serves the API, because all of
// them are started.
func (a *aggregated) stored(server *apiserver.Server) []apiserver.Stored {
	if a.Serving == nil && a.Eventing == nil {
		return nil
	}
	return server.Stored()
}

// guarded returns config for clients that reject writes of what this replica does not own.
func (a *aggregated) guarded(config *rest.Config) *rest.Config {
	if a.replica == nil {
		return config
	}
	config = rest.CopyConfig(config)
	config.Wrap(leader.Guard)
	return config
}

// clusterID returns the name by which event logs of several clusters in the same NATS are distinguished. All replicas have the
// same.
func (a *aggregated) clusterID(ctx context.Context) (string, error) {
	namespace, err := a.host.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("name the event logs of the host cluster: %w", err)
	}
	return string(namespace.UID), nil
}

// serviceName returns the DNS name of a Service of the system namespace.
func (a *aggregated) serviceName(service string) string {
	return service + "." + a.API.SystemNamespace + ".svc." + a.ClusterDomain
}

// accessLog returns the access log at a path, or nil for an empty path.
func accessLog(path string) io.WriteCloser {
	if path == "" {
		return nil
	}
	return openAccessLog(path)
}

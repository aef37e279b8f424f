package app

import (
	"context"
	"fmt"
	"net"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// publicDomain ends the public names of Routes where config-domain says nothing.
const publicDomain = "example.com"

// AggregatedOptions are what Aggregated needs to know.
type AggregatedOptions struct {
	// Host reaches the host cluster as this server.
	Host *rest.Config
	// DataDir is where the embedded event log is kept.
	DataDir string
	// SystemNamespace is that of this server: of its Services, and of the ConfigMaps of the settings.
	SystemNamespace string
	// ClusterDomain is the DNS domain of the host cluster.
	ClusterDomain string
	// Replica is this server among others; nil if there are none.
	Replica *Replica
	// Serving runs Services; nil leaves them to others.
	Serving *ServingOptions
	// Broker takes events; nil leaves them to others.
	Broker *BrokerOptions
	// MemoryBudget bounds the bytes that requests, events and deliveries hold; 0 stands for flow.DefaultLimit.
	MemoryBudget int64
	// AllowCrossNamespace has references to other namespaces resolved that these do not allow.
	AllowCrossNamespace bool
	// Destinations says which addresses events may be sent to, and which ones registries may have.
	Destinations egress.Options
	// Stop is called when a part has ended that should not have. It has the context of Start end. See Wait.
	Stop func()
}

// ServingOptions are what Serving needs to know.
type ServingOptions struct {
	// Public takes requests from outside the cluster, Internal those of the cluster's Pods, Drain the questions of kubelets
	// whether a Pod may end. They are nil where other replicas have the gateway.
	Public, Internal, Drain net.Listener
	// AccessLog is the path of the access log; "-" stands for standard error, nothing for none.
	AccessLog string
}

// Aggregated is Knative beside an API server that extends a host cluster: revisions run as its Pods.
type Aggregated struct {
	options AggregatedOptions
	host    kubernetes.Interface
	// writer reaches the host cluster too, and writes only what this replica is to write.
	writer   kubernetes.Interface
	settings *settings.Store
	faults   *faults
	budget   *flow.Budget
	// guard decides which addresses that tenants name may be connected to.
	guard *egress.Guard
	parts
}

// NewAggregated reads the settings from the host cluster and follows them until ctx ends.
func NewAggregated(ctx context.Context, options AggregatedOptions) (*Aggregated, error) {
	options.Host = host.BuiltIn(options.Host)
	options.Host.QPS = -1
	client, err := kubernetes.NewForConfig(options.Host)
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster: %w", err)
	}
	a := &Aggregated{
		options:  options,
		host:     client,
		settings: settings.NewStore(settings.Default(publicDomain)),
		faults:   newFaults(options.SystemNamespace),
		budget:   newBudget(options.MemoryBudget, options.Broker),
		parts:    parts{stop: options.Stop},
	}
	if a.guard, err = newGuard(options.Destinations, options.Host, options.Replica); err != nil {
		return nil, err
	}
	if a.writer, err = kubernetes.NewForConfig(a.guarded(options.Host)); err != nil {
		return nil, fmt.Errorf("making a client of the host cluster: %w", err)
	}
	if err := a.settings.WatchConfigMaps(ctx, client, options.SystemNamespace, a.faults); err != nil {
		return nil, fmt.Errorf("reading the settings: %w", err)
	}
	return a, nil
}

// APISettings are the settings in force that the API depends on.
func (a *Aggregated) APISettings() servingv1.Settings { return a.settings.API() }

// EventingSettings are the settings in force that new Brokers depend on.
func (a *Aggregated) EventingSettings() eventingv1.Settings { return a.settings.Eventing() }

// MessagingSettings are the settings in force that new Channels depend on.
func (a *Aggregated) MessagingSettings() messagingv1.Settings { return a.settings.Messaging() }

// PodDefaults returns the operator's runtime class for Revisions with the given labels, and whether their Pods are spread
// over nodes.
func (a *Aggregated) PodDefaults(labels map[string]string) (runtimeClass string, spread bool) {
	return a.settings.Get().PodDefaults(labels)
}

// Start starts controllers, gateway and broker, through the API server that config reaches as the controllers, and
// returns once requests and events are taken. Everything ends with ctx; see Wait. From when stopping ends, which is some
// time before, other replicas take over what this one owns.
func (a *Aggregated) Start(ctx, stopping context.Context, config *rest.Config) error {
	recorder, _, err := host.NewRecorder(ctx, a.options.Host, "knative-apiserver")
	if err != nil {
		return err
	}
	a.faults.recordBy(recorder)
	a.options.Replica.follow(a.faults.lead)
	clients, err := newClients(a.guarded(config), recorder)
	if err != nil {
		return err
	}
	parts, err := a.all(ctx, stopping, clients)
	if err != nil {
		return err
	}
	if err := a.start(ctx, parts...); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Taking requests and events")
	return nil
}

// all returns the parts of the server, in the order in which they are prepared: other replicas leave things to this one
// when it can do them, and deliveries begin when it is known which ones are its own.
func (a *Aggregated) all(ctx, stopping context.Context, clients *clients) ([]part, error) {
	services, err := hostservice.NewInformer(a.host)
	if err != nil {
		return nil, err
	}
	parts := []part{{prepare: func(ctx context.Context, run func(func(context.Context))) error {
		clients.informers.Start(ctx.Done())
		if a.options.Serving != nil || a.options.Broker != nil {
			run(services.RunWithContext)
		}
		if a.options.Replica == nil {
			return nil
		}
		return a.options.Replica.start(ctx, stopping, run)
	}}}
	if a.options.Serving != nil {
		serving, err := a.serving(ctx, stopping, clients, services)
		if err != nil {
			return nil, err
		}
		parts = append(parts, serving)
	}
	var events []part
	if a.options.Broker != nil {
		eventing, err := a.eventing(ctx, clients, services)
		if err != nil {
			return nil, err
		}
		context.AfterFunc(stopping, eventing.ingress.Retire)
		events = eventing.parts(a.options.Broker.Listener)
		parts = append(parts, events[0])
		events = events[1:]
	}
	if a.options.Replica != nil {
		parts = append(parts, a.options.Replica.part())
	}
	return append(parts, events...), nil
}

// guarded returns config for clients that write only what this replica is to write.
func (a *Aggregated) guarded(config *rest.Config) *rest.Config {
	if a.options.Replica == nil {
		return config
	}
	config = rest.CopyConfig(config)
	config.Wrap(leader.Guard)
	return config
}

// clusterID returns the name by which the event logs of a cluster are told from those of others in the same NATS. It
// is the same for whichever machine the server runs on.
func (a *Aggregated) clusterID(ctx context.Context) (string, error) {
	namespace, err := a.host.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("naming the event logs of this cluster: %w", err)
	}
	return string(namespace.UID), nil
}

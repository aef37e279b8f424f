package components

import (
	"context"
	"fmt"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/events"
)

const (
	// clusterDomain ends the names of Services of the host cluster.
	clusterDomain = "cluster.local"
	// ingressService is the name of the Service in the system namespace that leads to the broker.
	ingressService = "broker-ingress"
	// channelServiceSuffix ends the name of the Service that leads to a Channel.
	channelServiceSuffix = "-kn-channel"
)

// AggregatedOptions are what Aggregated needs to know.
type AggregatedOptions struct {
	// DataDir is where the embedded event log is kept.
	DataDir string
	// SystemNamespace is that of the Service in front of the broker.
	SystemNamespace string
	// Broker takes events.
	Broker *BrokerOptions
	// Stop is called when a part has ended that should not have. It has the context of Start end. See Wait.
	Stop func()
}

// Aggregated is Knative Eventing beside an API server that extends a host cluster. What Triggers and Subscriptions
// refer to may be of any kind there (eventing Destination Resolution).
type Aggregated struct {
	options AggregatedOptions
	parts
}

// NewAggregated returns what Start starts.
func NewAggregated(options AggregatedOptions) *Aggregated {
	return &Aggregated{options: options, parts: parts{stop: options.Stop}}
}

// Start starts controllers and broker, through the API server that config reaches as the controllers, and returns once
// events are taken. host reaches the host cluster. Everything ends with ctx; see Wait.
func (a *Aggregated) Start(ctx context.Context, config, host *rest.Config) error {
	host = rest.CopyConfig(host)
	host.QPS = -1
	recorder, _, err := events.NewRecorder(ctx, host, "knative-apiserver")
	if err != nil {
		return err
	}
	clients, err := newClients(config, recorder)
	if err != nil {
		return err
	}
	eventing, err := a.eventing(ctx, clients, host)
	if err != nil {
		return err
	}
	clients.informers.Start(ctx.Done())
	if err := a.start(ctx, eventing); err != nil {
		return err
	}
	klog.FromContext(ctx).Info("Taking events", "address", a.options.Broker.Listener.Addr().String())
	return nil
}

// eventing makes the part that delivers events.
func (a *Aggregated) eventing(ctx context.Context, clients *clients, host *rest.Config) (part, error) {
	o := a.options.Broker
	cluster, err := hostCluster(host)
	if err != nil {
		return part{}, err
	}
	log := o.Log
	if log.URL == "" {
		log.Dir = filepath.Join(a.options.DataDir, "events")
	} else if log.Installation, err = clusterID(ctx, host); err != nil {
		return part{}, err
	}
	address := func(key eventing.Key) duckv1.Addressable { return clusterAddress(a.options.SystemNamespace, key) }
	eventing, err := newEventing(ctx, eventingOptions{
		clients: clients, log: log, address: address, host: cluster, maxBody: o.MaxEventBytes, tracing: o.Tracing, stopTimeout: stopTimeout,
	})
	if err != nil {
		return part{}, err
	}
	return part{eventing.prepare, func(ctx context.Context) error { return eventing.serve(ctx, o.Listener) }}, nil
}

// hostCluster reaches objects of all kinds of the host cluster.
func hostCluster(config *rest.Config) (*destination.Host, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster's discovery: %w", err)
	}
	return &destination.Host{
		Client: objects,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds)),
		Clock:  clock.RealClock{},
	}, nil
}

// clusterID returns the name by which the event logs of a cluster are told from those of others in the same NATS. It
// is the same for whichever machine the server runs on.
func clusterID(ctx context.Context, config *rest.Config) (string, error) {
	client, err := typedcorev1.NewForConfig(config)
	if err != nil {
		return "", fmt.Errorf("making a client of the host cluster: %w", err)
	}
	namespace, err := client.Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
	if err != nil {
		return "", fmt.Errorf("naming the event logs of this cluster: %w", err)
	}
	return string(namespace.UID), nil
}

// clusterAddress is where a stream accepts events from within the cluster.
func clusterAddress(systemNamespace string, key eventing.Key) duckv1.Addressable {
	if key.Kind == eventing.Channel {
		return duckv1.Addressable{URL: fmt.Sprintf("http://%s%s.%s.svc.%s", key.Name, channelServiceSuffix, key.Namespace, clusterDomain)}
	}
	return addressOf(fmt.Sprintf("%s.%s.svc.%s", ingressService, systemNamespace, clusterDomain), key)
}

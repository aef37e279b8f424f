package app

import (
	"context"
	"fmt"
	"net"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channel"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// ingressService is the name of the Service in the system namespace by which Pods reach the broker.
const ingressService = "broker-ingress"

// newEventing returns the modules of Eventing. services has the core Services of the host cluster.
func (a *aggregated) newEventing(ctx context.Context, clients *clients, services cache.SharedIndexInformer) (*eventingModules, error) {
	cluster, err := a.hostCluster(a.guarded(a.builtIn))
	if err != nil {
		return nil, err
	}
	names, err := hostservice.New(hostservice.Options{
		Client: a.writer.CoreV1(), Informer: services,
		Kind: messagingv1.SchemeGroupVersion.WithKind("Channel"), LabelKey: channel.ChannelLabelKey,
		Target: a.serviceName(ingressService),
	})
	if err != nil {
		return nil, err
	}
	config := *a.Eventing
	if config.Log.URL == "" {
		config.Log.Dir = EventLogDir(a.API.DataDir)
		if a.members != nil && a.members.Replicas > 1 {
			a.members.joinEventLog(&config.Log, a.certificates.PeerTLS())
		}
	}
	if config.Log.URL != "" || config.Log.Cluster != nil {
		if config.Log.Installation, err = a.clusterID(ctx); err != nil {
			return nil, err
		}
	}
	return newEventing(ctx, eventingOptions{
		EventingConfig: config, registry: a.registry, clients: clients, clusterDomain: a.ClusterDomain, address: a.address, host: cluster,
		channelServices:     names,
		allowCrossNamespace: a.AllowCrossNamespace,
		network:             destination.Network{Namespace: a.API.SystemNamespace, Ingress: ingressService, Gateway: internalGateway},
		replica:             a.replica, budget: a.budget, guard: a.guard,
		discloses: sender.ClusterHosts(a.ClusterDomain, net.DefaultResolver.LookupCNAME, a.serviceName(internalGateway), a.serviceName(ingressService)),
	})
}

// hostCluster returns the clients for objects of all kinds of the host cluster.
func (a *aggregated) hostCluster(config *rest.Config) (*destination.Host, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of the host cluster: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create client of the host cluster's discovery: %w", err)
	}
	cached := memory.NewMemCacheClient(kinds)
	return &destination.Host{
		Client: objects,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached),
		Kinds:  cached,
		// Not cached.
		Discovery: kinds.RESTClient(),
		// Each replica asks, whether it leads or not.
		Access: a.host.AuthorizationV1().SelfSubjectAccessReviews(),
		Clock:  clock.RealClock{},
	}, nil
}

// address returns the address at which a stream accepts events of Pods.
func (a *aggregated) address(key eventing.Key) duckv1.Addressable {
	if key.Kind == eventing.Channel {
		return duckv1.Addressable{URL: fmt.Sprintf("http://%s.%s.svc.%s", eventing.ChannelHost(key.Name), key.Namespace, a.ClusterDomain)}
	}
	return addressOf(a.serviceName(ingressService), key)
}

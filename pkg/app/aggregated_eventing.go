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

// ingressService is the name of the Service in the system namespace that leads to the broker.
const ingressService = "broker-ingress"

// eventing makes the parts that deliver events. services has the core Services of the host cluster.
func (a *Aggregated) eventing(ctx context.Context, clients *clients, services cache.SharedIndexInformer) (*eventingPart, error) {
	o := a.options.Broker
	cluster, err := a.hostCluster(a.guarded(a.options.Host))
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
	log := o.Log
	if log.URL == "" {
		log.Dir = EventLogDir(a.options.DataDir)
	}
	if log.URL != "" || log.Cluster != nil {
		if log.Installation, err = a.clusterID(ctx); err != nil {
			return nil, err
		}
	}
	return newEventing(ctx, eventingOptions{
		clients: clients, clusterDomain: a.options.ClusterDomain, log: log, address: a.address, host: cluster,
		channelServices:     names,
		allowCrossNamespace: a.options.AllowCrossNamespace,
		network:             destination.Network{Namespace: a.options.SystemNamespace, Ingress: ingressService, Gateway: internalGateway},
		replica:             a.options.Replica,
		budget:              a.budget,
		guard:               a.guard,
		discloses:           sender.ClusterHosts(a.options.ClusterDomain, net.DefaultResolver.LookupCNAME, a.serviceName(internalGateway), a.serviceName(ingressService)),
		maxBody:             o.MaxEventBytes, tracing: o.Tracing, stopTimeout: stopTimeout,
	})
}

// hostCluster reaches objects of all kinds of the host cluster.
func (a *Aggregated) hostCluster(config *rest.Config) (*destination.Host, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster's discovery: %w", err)
	}
	cached := memory.NewMemCacheClient(kinds)
	return &destination.Host{
		Client: objects,
		Mapper: restmapper.NewDeferredDiscoveryRESTMapper(cached),
		Kinds:  cached,
		// Not cached.
		Discovery: kinds.RESTClient(),
		// Every replica asks for itself.
		Access: a.host.AuthorizationV1().SelfSubjectAccessReviews(),
		Clock:  clock.RealClock{},
	}, nil
}

// address is where a stream accepts events from within the cluster.
func (a *Aggregated) address(key eventing.Key) duckv1.Addressable {
	if key.Kind == eventing.Channel {
		return duckv1.Addressable{URL: fmt.Sprintf("http://%s.%s.svc.%s", eventing.ChannelHost(key.Name), key.Namespace, a.options.ClusterDomain)}
	}
	return addressOf(a.serviceName(ingressService), key)
}

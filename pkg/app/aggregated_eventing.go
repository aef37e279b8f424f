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

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channel"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/senderaccount"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tokens"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// ingressService is the name of the Service in the system namespace by which Pods reach the broker.
const ingressService = "broker-ingress"

// newEventing returns the modules of Eventing. services has the core Services of the host cluster, accounts the ServiceAccounts of Triggers and
// Subscriptions.
func (a *aggregated) newEventing(ctx context.Context, clients *clients, services, accounts cache.SharedIndexInformer) (*eventingModules, error) {
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
		EventingConfig: config, registry: a.registry, clients: clients, clusterDomain: a.ClusterDomain, host: cluster,
		settings: a.settings, tracing: a.telemetry.Tracing(), reviews: a.reviews, dataDir: a.API.DataDir,
		accounts: senderaccount.Source{Client: a.writer.CoreV1(), Informer: accounts},
		// Each replica requests the tokens for the streams that it owns.
		tokens: tokens.New(tokens.Options{
			Requester: tokens.Kubernetes{Client: a.host.CoreV1()}, Reviewer: a.host.AuthenticationV1().TokenReviews(), Register: a.registry.MustRegister,
		}),
		plain: a.plainURL, secure: a.secureIngress(), core: a.host, faults: a.faults,
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

// plainURL returns the URL at which a stream accepts events of Pods without TLS.
func (a *aggregated) plainURL(key eventing.Key) string {
	if key.Kind == eventing.Channel {
		return fmt.Sprintf("http://%s.%s.svc.%s", eventing.ChannelHost(key.Name), key.Namespace, a.ClusterDomain)
	}
	return urlOf(addressHTTP, a.serviceName(ingressService), key)
}

// secureIngress returns the broker's listener with TLS, whose certificate the authority of the replicas issues. Nil without a listener.
func (a *aggregated) secureIngress() *secureIngress {
	if a.Eventing.TLS == nil {
		return nil
	}
	host := a.serviceName(ingressService)
	short := ingressService + "." + a.API.SystemNamespace
	return &secureIngress{
		host: host, authority: a.issuer.Bundle, subscribe: a.issuer.Subscribe, certificate: a.issuer.ServerCertificate(host, short+".svc", short),
	}
}

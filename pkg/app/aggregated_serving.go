package app

import (
	"context"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	gatewaycerts "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	kubeworkload "github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
)

const (
	// internalGateway is the name of the Service in the system namespace by which Pods reach the gateway.
	internalGateway = "gateway-internal"
	// drainPort is the port of internalGateway for preStop hooks.
	drainPort = 8083
)

// servingModules are Serving with Revisions as Pods.
type servingModules struct {
	// certificates is nil if the gateway of this replica does not serve HTTPS.
	certificates *hostCertificates
	pods         *pods
	serving      *serving
	// traffic is nil if other replicas run the gateway.
	traffic *traffic
}

// newServing returns the modules of Serving. services has the core Services of the host cluster, namespaces the metadata of
// its Namespaces.
func (a *aggregated) newServing(ctx context.Context, clients *clients, services, namespaces cache.SharedIndexInformer) (*servingModules, error) {
	log := accessLog(a.Serving.AccessLog)
	store := &gatewaycerts.Store{}
	activations := &activations{}
	gateway := newGateway(gatewayOptions{
		registry: a.registry, settings: a.settings, budget: a.budget, tracing: a.telemetry.Tracing(), activations: activations, accessLog: log, standardOnly: a.Serving.StandardOnly, proxies: a.Serving.Proxies, proxyProtocol: a.Serving.ProxyProtocol, replica: a.replica,
		reviews: a.reviews, listeners: 3, certificates: store, stopTimeout: longestRequest,
	})
	workload, err := kubeworkload.New(kubeworkload.Options{
		Client:       a.writer,
		Images:       images.New(images.Options{Client: a.host, Settings: a.settings.Get, Guard: a.guard, Budget: a.budget, Clock: clock.RealClock{}, Logger: klog.FromContext(ctx)}),
		Settings:     a.settings.Get,
		Drain:        gateway.AwaitDrainedByAll,
		DrainAddress: a.drainAddress(ctx),
		LogURL:       logURL,
		Leading:      a.leading(),
		Logger:       klog.FromContext(ctx).WithName("pods"),
	})
	if err != nil {
		return nil, err
	}
	placeholders, err := hostservice.New(hostservice.Options{
		Client: a.writer.CoreV1(), Informer: services,
		Kind: servingv1.SchemeGroupVersion.WithKind("Route"), LabelKey: route.RouteLabelKey,
		Target: a.serviceName(internalGateway),
	})
	if err != nil {
		return nil, err
	}
	var hostCertificates *hostCertificates
	if a.Serving.Public == nil || a.Serving.TLS != nil {
		if hostCertificates, err = a.newHostCertificates(ctx, store); err != nil {
			return nil, err
		}
	}
	serving, err := newServing(ctx, servingOptions{
		certificates: hostCertificates,
		registry:     a.registry, clients: clients, settings: a.settings, workload: workload, gateway: gateway, activations: activations,
		urls: route.URLs{ClusterDomain: a.ClusterDomain}, placeholders: placeholders, namespaces: namespaces,
		replica: a.replica, pods: workload, faults: a.faults,
	})
	if err != nil {
		return nil, err
	}
	a.autoscaler = serving.autoscaler
	m := &servingModules{certificates: hostCertificates, pods: &pods{workload: workload}, serving: serving}
	if a.Serving.Public != nil {
		a.gateway = gateway
		m.traffic = &traffic{
			gateway: gateway, listener: a.Serving.Internal, public: a.Serving.Public, tls: a.Serving.TLS, http3: a.Serving.HTTP3, certificates: store, drain: a.Serving.Drain, hooks: workload.DrainHandler(), accessLog: log,
		}
	}
	return m, nil
}

// leading returns the function that reports whether this replica leads, or nil without peers.
func (a *aggregated) leading() func() bool {
	if a.replica == nil {
		return nil
	}
	return a.replica.Leading
}

// drainAddress returns the address at which kubelets reach the gateway's preStop hooks: the cluster IP of its Service, because
// nodes do not resolve names of the cluster. The Service is read once.
func (a *aggregated) drainAddress(ctx context.Context) func() (string, int32) {
	address := sync.OnceValue(func() string {
		service, err := a.host.CoreV1().Services(a.API.SystemNamespace).Get(ctx, internalGateway, metav1.GetOptions{})
		if err != nil {
			klog.FromContext(ctx).Info("Service for preStop hooks not found; Pods sleep before they stop instead", "reason", err.Error())
			return ""
		}
		return service.Spec.ClusterIP
	})
	return func() (string, int32) { return address(), drainPort }
}

// logURL returns the path of the logs of a Revision below the address of the cluster's API.
func logURL(revision types.NamespacedName) string {
	return servingv1.RevisionLogPath(revision.Namespace, revision.Name)
}

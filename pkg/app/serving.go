package app

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration/gc"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/domainmapping"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revision"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/service"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	gatewaycerts "github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/certificates"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/gateway"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	servinginformers "github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// activationTimeout limits the time of starting a first backend on behalf of the leader.
const activationTimeout = 10 * time.Second

// scalesFromZero is a workload that any replica may ask for a first backend.
type scalesFromZero interface {
	Activate(ctx context.Context, revision types.NamespacedName) error
}

// activations passes requests for a first backend to the autoscaler. The gateway and the processes that send them are constructed
// before the autoscaler, which uses both; connect is called before any of them runs.
type activations struct{ autoscaler *autoscaler.Loop }

func (a *activations) connect(to *autoscaler.Loop) { a.autoscaler = to }

// Activate requests a first backend for a Revision.
func (a *activations) Activate(revision routing.Key) { a.autoscaler.Activate(revision) }

// gatewayOptions are the dependencies of a gateway.
type gatewayOptions struct {
	registry    metricsRegistry
	settings    *settings.Store
	budget      *flow.Budget
	activations *activations
	// tracing makes the spans of requests.
	tracing *telemetry.Tracing
	// drained is called when a draining backend has no requests. Nil if the workload asks the gateway instead.
	drained func(revision routing.Key, backend string)
	// accessLog may be nil.
	accessLog io.Writer
	// reviews verifies the callers of restricted Routes.
	reviews *reviews.Reviews
	// standardOnly makes net/http forward all requests.
	standardOnly bool
	// proxies are the networks of trusted proxies.
	proxies []netip.Prefix
	// proxyProtocol is true if trusted proxies speak the PROXY protocol.
	proxyProtocol bool
	// httpsPort is the port of HTTPS for clients; 0 means 443.
	httpsPort int
	// certificates has the ACME challenges to answer.
	certificates *gatewaycerts.Store
	// replica is nil without peers.
	replica *replica
	// listeners is the number of listeners to serve, stopTimeout the time that in-flight requests have to finish.
	listeners   int
	stopTimeout time.Duration
}

func newGateway(o gatewayOptions) *gateway.Gateway {
	options := gateway.Options{
		Activate:            o.activations.Activate,
		Drained:             o.drained,
		TagHeader:           func() bool { return o.settings.Get().TagHeader },
		MaxTimeout:          func() time.Duration { return time.Duration(o.settings.Get().API.MaxTimeoutSeconds) * time.Second },
		TargetBurstCapacity: func() float64 { return o.settings.Get().Autoscaler.TargetBurstCapacity },
		AccessLog:           o.accessLog,
		StandardOnly:        o.standardOnly,
		TrustedProxies:      o.proxies,
		ProxyProtocol:       o.proxyProtocol,
		HTTPSPort:           o.httpsPort,
		Certificates:        o.certificates,
		Reviews:             o.reviews,
		Budget:              o.budget,
		Tracing:             o.tracing,
		Register:            o.registry.MustRegister,
		StopTimeout:         o.stopTimeout,
		Listeners:           o.listeners,
	}
	if r := o.replica; r != nil {
		options.Members, options.Forward = r.Gateways(), r.Transport()
		options.Standing, options.UpToDate = r.standing, r.membership.UpToDate
	}
	g := gateway.New(options)
	if o.replica != nil {
		o.replica.gateway = g
		o.replica.server.HandleAll("gateway", g.PeerHandler())
		o.replica.server.Handle(gateway.ServicesElement, g.ServiceHandler())
	}
	return g
}

// servingOptions are the dependencies of Serving.
type servingOptions struct {
	registry    metricsRegistry
	clients     *clients
	settings    *settings.Store
	workload    workload.Runtime
	gateway     *gateway.Gateway
	activations *activations
	urls        route.URLs
	// certificates are the certificates of public host names. Nil if the gateway does not serve HTTPS.
	certificates *hostCertificates
	// placeholders are the core Services of Routes. Nil without a host cluster.
	placeholders route.Placeholders
	// namespaces has the metadata of all Namespaces.
	namespaces cache.SharedIndexInformer
	faults     *faults
	// replica is nil without peers. pods start a first backend while another replica leads.
	replica *replica
	pods    scalesFromZero
}

// serving is the module of the controllers that the gateway needs, and the autoscaler. It is ready when the gateway knows all Revisions and
// Routes.
type serving struct {
	controllers
	// children is the module of the other controllers of Serving. It starts later: after a restart with many objects, requests are served sooner.
	children   *controllers
	gateway    *gateway.Gateway
	autoscaler *autoscaler.Loop
	workload   workload.Runtime
	pods       scalesFromZero
}

func newServing(ctx context.Context, o servingOptions) (*serving, error) {
	s := &serving{controllers: controllers{name: "serving"}, gateway: o.gateway, workload: o.workload, pods: o.pods}
	s.autoscaler = autoscaler.New(s.autoscalerOptions(ctx, o))
	o.activations.connect(s.autoscaler)
	o.registry.CustomMustRegister(s.autoscaler)

	client, kinds, now := o.clients.versioned.ServingV1(), o.clients.informers.Serving().V1(), clock.RealClock{}
	recorder := o.clients.recorder
	if o.replica != nil {
		if o.replica.config.Leads {
			o.replica.server.HandleAll(activationElement, s.activationHandler())
		}
		o.replica.server.HandleAll("autoscaler", s.autoscaler.UsageHandler())
		o.replica.server.Handle(autoscaler.ExplanationElement, s.autoscaler.ExplanationHandler())
		recorder = leader.Recorder(recorder, func(apiruntime.Object) bool { return o.replica.Leading() })
	}
	children, err := o.newChildren(client, kinds, recorder)
	if err != nil {
		return nil, err
	}
	s.children = children
	revisions, err := (&revision.Reconciler{
		Client: client, Runtime: o.workload, Sinks: []revision.Sink{o.gateway, s.autoscaler},
		Recorder: recorder, Clock: now, Settings: o.settings.Get,
	}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	claims := &hostnames.Claims{}
	routeReconciler := &route.Reconciler{
		Client: client, Gateway: o.gateway, URLs: o.urls, Placeholders: o.placeholders, Namespaces: o.namespaces, Claims: claims,
		Recorder: recorder, Clock: now, Settings: o.settings.Get,
	}
	if o.certificates != nil {
		routeReconciler.Certificates, routeReconciler.CertManager = o.certificates, o.certificates.certManager
		if o.urls.Authority != nil {
			o.certificates.authority.Subscribe(routeReconciler.EnqueueAll)
		}
	}
	routes, err := routeReconciler.Controller(kinds)
	if err != nil {
		return nil, err
	}
	mappingReconciler := &domainmapping.Reconciler{
		Client: o.clients.versioned.ServingV1beta1(), ClaimsClient: o.clients.versioned.NetworkingV1alpha1(), Gateway: o.gateway, Claims: claims,
		URLs: domainmapping.URLs{ClusterDomain: o.urls.ClusterDomain, Of: func(scheme, name string) string {
			if scheme == "https" {
				return o.urls.Secure(name)
			}
			return o.urls.Of(scheme, name)
		}},
		Recorder: recorder, Clock: now, Settings: o.settings.Get,
	}
	if o.certificates != nil {
		mappingReconciler.Certificates, mappingReconciler.CertManager = o.certificates, o.certificates.certManager
	}
	mappings, err := mappingReconciler.Controller(o.clients.informers)
	if err != nil {
		return nil, err
	}
	// Host names are assigned when all objects that claim some are known.
	routes.Await(o.clients.informers.Serving().V1beta1().DomainMappings().Informer())
	routes.Await(o.clients.informers.Networking().V1alpha1().ClusterDomainClaims().Informer())
	s.all = []*reconciler.Controller{revisions, routes, mappings}
	s.awaited = s.all
	if o.replica != nil {
		o.replica.lead(s.all...)
	}

	o.workload.Subscribe(func(key types.NamespacedName, state workload.State) {
		o.gateway.SetInstances(key, state.Instances)
		s.autoscaler.Observe(key, state)
		revisions.Enqueue(key)
	})
	o.reportUnserved()
	o.settings.Subscribe(func() {
		o.reportUnserved()
		s.autoscaler.SettingsChanged()
		routeReconciler.EnqueueAll()
		mappingReconciler.EnqueueAll()
	})
	return s, nil
}

// newChildren returns the module of the controllers that write the objects that Services and Configurations own, and delete old Revisions. It
// has none if this replica never writes: the data plane needs none of them.
func (o *servingOptions) newChildren(client servingclient.ServingV1Interface, kinds servinginformers.Interface, recorder record.EventRecorder) (*controllers, error) {
	m := &controllers{name: "services"}
	if o.replica != nil && o.replica.config.ReadOnly {
		return m, nil
	}
	now := clock.RealClock{}
	services, err := (&service.Reconciler{Client: client, Recorder: recorder, Clock: now}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	configurations, err := (&configuration.Reconciler{Client: client, Recorder: recorder, Clock: now}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	revisionGC, err := (&gc.Reconciler{Client: client, Clock: now, Settings: o.settings.Get}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	o.settings.Subscribe(revisionGC.RequeueAll)
	m.all = []*reconciler.Controller{services, configurations, revisionGC}
	if o.replica != nil {
		o.replica.lead(m.all...)
	}
	return m, nil
}

// reportUnserved reports a setting that asks for HTTPS if the gateway does not serve it.
func (o *servingOptions) reportUnserved() {
	if o.certificates != nil {
		return
	}
	message := ""
	if o.settings.Get().Network.ExternalDomainTLS {
		message = "'external-domain-tls' has no effect: the gateway does not serve HTTPS (--gateway-tls-port)"
	}
	o.faults.HTTPSNotServed(settings.NetworkConfigMapName, message)
}

func (s *serving) autoscalerOptions(ctx context.Context, o servingOptions) autoscaler.Options {
	options := autoscaler.Options{
		Settings: o.settings.Get,
		Scale:    o.workload.Scale,
		Sample:   s.sample,
		Clock:    clock.RealClock{},

		ColdStarts: s.coldStarts,
		Logger:     klog.FromContext(ctx).WithName("autoscaler"),
	}
	if r := o.replica; r != nil {
		options.Leading, options.Members = r.Leading, r.Gateways()
		options.Report, options.Send, options.ActivateNow = s.report, r.report, s.activate
		if r.config.ReadOnly {
			options.ActivateNow = s.requestActivation(r)
		}
	}
	return options
}

// Start implements lifecycle.Module.
func (s *serving) Start(ctx context.Context, fail func(error)) error {
	if err := s.controllers.Start(ctx, fail); err != nil {
		return err
	}
	s.Run(s.autoscaler.Run)
	return nil
}

// sample returns the load of a Revision since the previous call.
func (s *serving) sample(key routing.Key, now time.Time) (autoscaler.Sample, bool) {
	concurrency, rate, waiting, ok := s.gateway.Sample(key, now)
	return autoscaler.Sample{Concurrency: concurrency, RequestsPerSecond: rate, Waiting: waiting}, ok
}

// report returns the load of all Revisions since the previous call.
func (s *serving) report(now time.Time) []autoscaler.Usage {
	loads := s.gateway.Report(now)
	usages := make([]autoscaler.Usage, len(loads))
	for i, load := range loads {
		usages[i] = autoscaler.Usage(load)
	}
	return usages
}

// coldStarts returns the cold starts at the gateway that have begun or changed since the previous call, with what the workload observed.
func (s *serving) coldStarts() []autoscaler.ColdStart {
	changed := s.gateway.ColdStarts()
	if len(changed) == 0 {
		return nil
	}
	all := make([]autoscaler.ColdStart, len(changed))
	for i, c := range changed {
		all[i] = autoscaler.ColdStart{
			Key: c.Key, UID: c.UID, Request: c.Request, Backend: c.Backend,
			Received: c.Received, Granted: c.Granted, Responded: c.Responded, Canceled: c.Canceled,
		}
		if start, ok := s.workload.StartOf(c.Key, c.Backend); ok {
			all[i].Scaled, all[i].Created, all[i].Scheduled, all[i].Started, all[i].Ready = start.Scaled, start.Created, start.Scheduled, start.Started, start.Ready
		}
	}
	return all
}

// activate starts a first backend of a Revision on behalf of the leader, without waiting for it.
func (s *serving) activate(key routing.Key) {
	s.Run(func(ctx context.Context) {
		ctx, cancel := context.WithTimeout(ctx, activationTimeout)
		defer cancel()
		if err := s.pods.Activate(ctx, key); err != nil && !errors.Is(err, context.Canceled) {
			klog.FromContext(ctx).Error(err, "Failed to scale from zero for a waiting request", "revision", key)
		}
	})
}

// activationElement is the first element of the paths of requests for a first backend.
const activationElement = "activation"

// requestActivation returns the function that requests a first backend of a Revision from a replica that may start it.
func (s *serving) requestActivation(from *replica) func(routing.Key) {
	return func(key routing.Key) {
		s.Run(func(ctx context.Context) {
			ctx, cancel := context.WithTimeout(ctx, activationTimeout)
			defer cancel()
			err := from.callRegistrars(ctx, peer.Call{
				Method: http.MethodPost, Path: "/" + activationElement, Query: url.Values{"namespace": {key.Namespace}, "name": {key.Name}},
			})
			if err != nil && ctx.Err() == nil {
				klog.FromContext(ctx).Error(err, "Failed to request scaling from zero for a waiting request", "revision", key)
			}
		})
	}
}

// activationHandler starts first backends for replicas that may not. The caller must have authenticated them.
func (s *serving) activationHandler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		if r.Method != http.MethodPost {
			http.Error(w, "method must be POST", http.StatusMethodNotAllowed)
			return
		}
		if err := s.pods.Activate(r.Context(), routing.Key{Namespace: query.Get("namespace"), Name: query.Get("name")}); err != nil {
			klog.FromContext(r.Context()).Error(err, "Failed to scale from zero for another replica")
			http.Error(w, "scale from zero", http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

// runner is a workload that works until its context ends, and then drains.
type runner interface{ Run(ctx context.Context) }

// processes is the module of the processes of Revisions. It is ready at once.
type processes struct {
	lifecycle.Tasks
	workload runner
}

// Name implements lifecycle.Module.
func (*processes) Name() string { return "processes" }

// Start implements lifecycle.Module.
func (m *processes) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	m.Run(m.workload.Run)
	return nil
}

// starter is a workload that watches from Start until its context ends.
type starter interface {
	Start(ctx context.Context) error
}

// pods is the module of the Pods of Revisions. It is ready when all existing Pods are known.
type pods struct {
	lifecycle.Tasks
	workload starter
}

// Name implements lifecycle.Module.
func (*pods) Name() string { return "pods" }

// Start implements lifecycle.Module.
func (m *pods) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	return m.Init(ctx, m.workload.Start)
}

// Package app connects controllers, data plane and runtime, which know nothing of each other.
package app

import (
	"context"
	"io"
	"time"

	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration/gc"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revision"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/service"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/gateway"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// serving is Knative Serving above a runtime: controllers, gateway and autoscaler.
type serving struct {
	gateway     *gateway.Gateway
	autoscaler  *autoscaler.Loop
	controllers []*reconciler.Controller
	// routing are the controllers that fill the gateway.
	routing []*reconciler.Controller
}

// servingOptions are what serving stands on.
type servingOptions struct {
	clients   *clients
	runtime   workload.Runtime
	settings  *settings.Store
	accessLog io.Writer
	// budget bounds the memory of requests.
	budget *flow.Budget
	urls   route.URLs
	// placeholders are the core Services of Routes; nil without a host cluster.
	placeholders route.Placeholders
	// replica is this server among others; nil if there are none. activate is what gateways do where another one leads.
	replica  *Replica
	activate func(revision routing.Key)
	// listeners is how many listeners are served.
	listeners int
	// stopTimeout is how long requests may go on at the end.
	stopTimeout time.Duration
}

func newServing(ctx context.Context, o servingOptions) (*serving, error) {
	s := &serving{}
	now := clock.RealClock{}
	scaling := autoscaler.Options{
		Settings: o.settings.Get,
		Scale:    o.runtime.Scale,
		Sample: func(key routing.Key, now time.Time) (autoscaler.Sample, bool) {
			concurrency, rate, waiting, ok := s.gateway.Sample(key, now)
			return autoscaler.Sample{Concurrency: concurrency, RequestsPerSecond: rate, Waiting: waiting}, ok
		},
		Clock:  now,
		Logger: klog.FromContext(ctx).WithName("autoscaler"),
	}
	routed := gateway.Options{
		Activate:            func(key routing.Key) { s.autoscaler.Activate(key) },
		Drained:             o.runtime.Drained,
		TagHeader:           func() bool { return o.settings.Get().TagHeader },
		MaxTimeout:          func() time.Duration { return time.Duration(o.settings.Get().API.MaxTimeoutSeconds) * time.Second },
		TargetBurstCapacity: func() float64 { return o.settings.Get().Autoscaler.TargetBurstCapacity },
		AccessLog:           o.accessLog,
		Budget:              o.budget,
		Register:            legacyregistry.MustRegister,
		StopTimeout:         o.stopTimeout,
		Listeners:           o.listeners,
	}
	if r := o.replica; r != nil {
		scaling.Leading, scaling.Members, scaling.ActivateNow = r.Leading, r.Gateways(), o.activate
		scaling.Report, scaling.Send = s.report, r.report
		routed.Members, routed.Forward = r.Gateways(), r.Transport()
	}
	s.autoscaler = autoscaler.New(scaling)
	s.gateway = gateway.New(routed)
	if r := o.replica; r != nil {
		r.server.Handle("gateway", s.gateway.PeerHandler())
		r.server.Handle("autoscaler", s.autoscaler.UsageHandler())
	}
	legacyregistry.CustomMustRegister(s.autoscaler)

	client, recorder := o.clients.versioned, o.clients.recorder
	if o.replica != nil {
		recorder = leader.Recorder(recorder, func(apiruntime.Object) bool { return o.replica.Leading() })
	}
	kinds := o.clients.informers.Serving().V1()

	services, err := (&service.Reconciler{Client: client.ServingV1(), Recorder: recorder, Clock: now}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	configurations, err := (&configuration.Reconciler{Client: client.ServingV1(), Recorder: recorder, Clock: now}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	revisionGC, err := (&gc.Reconciler{Client: client.ServingV1(), Clock: now, Settings: o.settings.Get}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	revisions, err := (&revision.Reconciler{
		Client: client.ServingV1(), Runtime: o.runtime, Sinks: []revision.Sink{s.gateway, s.autoscaler},
		Recorder: recorder, Clock: now, Settings: o.settings.Get,
	}).Controller(kinds)
	if err != nil {
		return nil, err
	}
	routeReconciler := &route.Reconciler{
		Client: client.ServingV1(), Gateway: s.gateway, URLs: o.urls, Placeholders: o.placeholders,
		Recorder: recorder, Clock: now, Settings: o.settings.Get,
	}
	routes, err := routeReconciler.Controller(kinds)
	if err != nil {
		return nil, err
	}
	s.controllers = []*reconciler.Controller{services, configurations, revisionGC, revisions, routes}
	s.routing = []*reconciler.Controller{revisions, routes}
	if o.replica != nil {
		o.replica.lead(s.controllers...)
	}

	o.runtime.Subscribe(func(key workload.Key, state workload.State) {
		s.gateway.SetInstances(key, state.Instances)
		s.autoscaler.Observe(key, state)
		revisions.Enqueue(key)
	})
	o.settings.Subscribe(func() {
		s.autoscaler.SettingsChanged()
		routeReconciler.EnqueueAll()
		revisionGC.RequeueAll()
	})
	return s, nil
}

// report returns what the gateway saw since the previous call.
func (s *serving) report(now time.Time) []autoscaler.Usage {
	seen := s.gateway.Report(now)
	usages := make([]autoscaler.Usage, len(seen))
	for i, u := range seen {
		usages[i] = autoscaler.Usage(u)
	}
	return usages
}

// prepare starts the controllers, and returns once the gateway knows all there is.
func (s *serving) prepare(ctx context.Context, run func(func(context.Context))) error {
	run(s.autoscaler.Run)
	for _, c := range s.controllers {
		run(func(ctx context.Context) { c.Run(ctx, workers) })
	}
	return primed(ctx, s.routing...)
}

// Package components connects controllers, data plane and runtime, which know nothing of each other.
package components

import (
	"context"
	"fmt"
	"io"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/configuration/gc"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/garbage"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revision"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/route"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/service"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/gateway"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/runtime"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// workers is how many objects of a kind are reconciled at a time.
const workers = 4

// serving is Knative Serving above a runtime: controllers, gateway and autoscaler.
type serving struct {
	gateway     *gateway.Gateway
	autoscaler  *autoscaler.Loop
	informers   externalversions.SharedInformerFactory
	controllers []*controllers.Controller
	// routing are the controllers that fill the gateway.
	routing []*controllers.Controller
}

// servingOptions are what serving stands on.
type servingOptions struct {
	config    *rest.Config
	runtime   runtime.Runtime
	settings  *settings.Store
	recorder  record.EventRecorder
	accessLog io.Writer
	urls      route.URLs
	// collectGarbage deletes objects whose owners are gone, where no host cluster does.
	collectGarbage bool
	// stopTimeout is how long requests may go on at the end.
	stopTimeout time.Duration
}

func newServing(ctx context.Context, o servingOptions) (*serving, error) {
	s := &serving{}
	now := clock.RealClock{}
	s.autoscaler = autoscaler.New(autoscaler.Options{
		Settings: o.settings.Get,
		Scale:    o.runtime.Scale,
		Sample: func(key routing.Key, now time.Time) (autoscaler.Sample, bool) {
			concurrency, rate, waiting, ok := s.gateway.Sample(key, now)
			return autoscaler.Sample{Concurrency: concurrency, RequestsPerSecond: rate, Waiting: waiting}, ok
		},
		Clock:  now,
		Logger: klog.FromContext(ctx).WithName("autoscaler"),
	})
	s.gateway = gateway.New(gateway.Options{
		Activate:    s.autoscaler.Activate,
		Drained:     o.runtime.Drained,
		TagHeader:   func() bool { return o.settings.Get().TagHeader },
		AccessLog:   o.accessLog,
		Register:    legacyregistry.MustRegister,
		StopTimeout: o.stopTimeout,
	})
	legacyregistry.CustomMustRegister(s.autoscaler)

	config := rest.CopyConfig(o.config)
	config.QPS = -1
	client, err := versioned.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("making the controllers' client: %w", err)
	}
	s.informers = externalversions.NewSharedInformerFactoryWithOptions(client, 0, externalversions.WithTransform(withoutManagedFields))
	kinds := s.informers.Serving().V1()

	services, err := service.New(client.ServingV1(), kinds, o.recorder, now)
	if err != nil {
		return nil, err
	}
	configurations, err := configuration.New(client.ServingV1(), kinds, o.recorder, now)
	if err != nil {
		return nil, err
	}
	revisionGC, err := gc.New(client.ServingV1(), kinds, now, o.settings.Get)
	if err != nil {
		return nil, err
	}
	sinks := []revision.Sink{s.gateway, s.autoscaler}
	revisions, err := revision.New(client.ServingV1(), kinds, o.runtime, sinks, o.recorder, now, o.settings.Get)
	if err != nil {
		return nil, err
	}
	reconciler, routes, err := route.New(client.ServingV1(), kinds, s.gateway, o.urls, o.recorder, now, o.settings.Get)
	if err != nil {
		return nil, err
	}
	s.controllers = []*controllers.Controller{services, configurations, revisionGC.Controller, revisions, routes}
	s.routing = []*controllers.Controller{revisions, routes}
	if o.collectGarbage {
		objects, err := metadata.NewForConfig(config)
		if err != nil {
			return nil, fmt.Errorf("making the garbage collector's client: %w", err)
		}
		collector, err := garbage.New(objects, s.informers, garbage.Resources())
		if err != nil {
			return nil, err
		}
		s.controllers = append(s.controllers, collector)
	}

	o.runtime.Subscribe(func(key runtime.Key, state runtime.State) {
		s.gateway.SetInstances(key, state.Instances)
		s.autoscaler.Observe(key, state)
		revisions.Enqueue(key)
	})
	o.settings.Subscribe(func() {
		s.autoscaler.SettingsChanged()
		reconciler.EnqueueAll()
		if err := revisionGC.SettingsChanged(); err != nil {
			klog.FromContext(ctx).Error(err, "Looking for Revisions to collect failed")
		}
	})
	return s, nil
}

// withoutManagedFields takes from cached objects what no controller reads, and what is a third of them. The
// server keeps the managed fields of objects that are written without.
func withoutManagedFields(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

// prepare starts the controllers, and returns once the gateway knows all there is.
func (s *serving) prepare(ctx context.Context, run func(func(context.Context))) error {
	s.informers.Start(ctx.Done())
	run(s.autoscaler.Run)
	for _, c := range s.controllers {
		run(func(ctx context.Context) { c.Run(ctx, workers) })
	}
	for _, c := range s.routing {
		select {
		case <-c.Primed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// serve takes requests until ctx ends and those under way are answered.
func (s *serving) serve(ctx context.Context, listener net.Listener) error {
	return s.gateway.Serve(ctx, listener)
}

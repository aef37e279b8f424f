package app

import (
	"context"

	"k8s.io/client-go/tools/cache"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// workers is the number of objects of a kind that are reconciled concurrently.
const workers = 16

// controllers is the module that runs controllers. It is ready when the awaited ones have reconciled all existing objects once.
type controllers struct {
	lifecycle.Tasks
	name    string
	all     []*reconciler.Controller
	awaited []*reconciler.Controller
}

// Name implements lifecycle.Module.
func (m *controllers) Name() string { return m.name }

// Start implements lifecycle.Module.
func (m *controllers) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	for _, c := range m.all {
		m.Run(func(ctx context.Context) { c.Run(ctx, workers) })
	}
	return nil
}

// Ready implements lifecycle.Module.
func (m *controllers) Ready(ctx context.Context) error {
	for _, c := range m.awaited {
		select {
		case <-c.Primed():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// informerFactory starts the informers that were requested from it.
type informerFactory interface {
	Start(stop <-chan struct{})
	Shutdown()
}

// informers is the module of the informers of all other modules, which have requested them when they were constructed.
type informers struct {
	lifecycle.Tasks
	factories []informerFactory
	informers []cache.SharedIndexInformer
}

// Name implements lifecycle.Module.
func (*informers) Name() string { return "informers" }

// Start implements lifecycle.Module.
func (m *informers) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	for _, factory := range m.factories {
		m.Run(func(ctx context.Context) {
			factory.Start(ctx.Done())
			<-ctx.Done()
			factory.Shutdown()
		})
	}
	for _, informer := range m.informers {
		m.Run(informer.RunWithContext)
	}
	return nil
}

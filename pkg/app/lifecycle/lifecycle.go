// Package lifecycle starts the modules of a server in order, reports which of them are not ready, and stops them in reverse
// order.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"
)

// Module is a part of the server.
type Module interface {
	// Name names the module in readiness, logs and errors.
	Name() string
	// Start starts the module without waiting for it to become ready. ctx is canceled when the server begins to stop. After Start has
	// returned, the module ignores that and runs until Stop. If it fails earlier, it calls fail with the error. A module whose Start
	// returns an error has stopped.
	Start(ctx context.Context, fail func(error)) error
	// Ready returns when the modules after this one may use it, or with an error, at the latest when ctx is canceled.
	Ready(ctx context.Context) error
	// Stop finishes the module's work and returns when all its goroutines have ended. The caller stops waiting when ctx is canceled.
	Stop(ctx context.Context) error
}

// Retirer is a Module that prepares for its stop while it still works: from Retire on, clients and peers should use other replicas.
// Retire is called at most once, after Start, and must not block. Stop may be called without it.
type Retirer interface{ Retire() }

// Stage is a list of modules that start in order and stop concurrently.
type Stage []Module

// Runner runs modules. Its methods may be called concurrently.
type Runner struct {
	stopTimeout time.Duration
	shutdown    func()
	stopped     sync.WaitGroup

	// mu guards the fields below.
	mu       sync.Mutex
	waiting  []string
	retired  bool
	retirers []Retirer
	errs     []error
}

// NewRunner returns a Runner that calls shutdown when a module fails; shutdown must cancel the context of Start. stopTimeout limits the
// time that each module has to stop.
func NewRunner(stopTimeout time.Duration, shutdown func()) *Runner {
	return &Runner{stopTimeout: stopTimeout, shutdown: shutdown}
}

// Start starts the modules, each when all before it are ready, and returns when the last one is ready. When ctx is canceled, the stages stop
// in reverse order; see Wait. If a module does not start, Start stops those before it and returns the error.
func (r *Runner) Start(ctx context.Context, stages ...Stage) error {
	for _, stage := range stages {
		for _, m := range stage {
			r.expect(m)
		}
	}
	started := make([]Stage, 0, len(stages))
	for _, stage := range stages {
		started = append(started, nil)
		for _, m := range stage {
			running, err := r.start(ctx, m)
			if running {
				started[len(started)-1] = append(started[len(started)-1], m)
			}
			if err != nil {
				return errors.Join(err, r.stop(ctx, started))
			}
			r.isReady(m)
		}
	}
	r.stopped.Go(func() {
		<-ctx.Done()
		r.failed(r.stop(ctx, started))
	})
	return nil
}

// Ready returns an error with the names of the modules that are not ready yet. It is nil before Start.
func (r *Runner) Ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.waiting) > 0 {
		return fmt.Errorf("not ready: %s", strings.Join(r.waiting, ", "))
	}
	return nil
}

// Retire retires each module that is a Retirer, now or as soon as it has started.
func (r *Runner) Retire() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired = true
	for _, m := range r.retirers {
		m.Retire()
	}
	r.retirers = nil
}

// Wait waits until all modules have stopped, and returns all errors of modules, including a missed stop timeout. Start must have returned before.
func (r *Runner) Wait() error {
	r.stopped.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

// start starts a module and waits until it is ready. It returns whether the module has to be stopped.
func (r *Runner) start(ctx context.Context, m Module) (running bool, err error) {
	if ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	fail := func(err error) {
		klog.FromContext(ctx).Error(err, "Module failed", "module", m.Name())
		r.failed(fmt.Errorf("%s: %w", m.Name(), err))
		r.shutdown()
	}
	if err := m.Start(ctx, fail); err != nil {
		return false, fmt.Errorf("start %s: %w", m.Name(), err)
	}
	if m, ok := m.(Retirer); ok {
		r.retire(m)
	}
	if err := m.Ready(ctx); err != nil {
		return true, fmt.Errorf("wait for %s to become ready: %w", m.Name(), err)
	}
	return true, nil
}

// stop stops stages in reverse order and returns all errors. ctx carries the logger.
func (r *Runner) stop(ctx context.Context, stages []Stage) error {
	var all []error
	for _, stage := range slices.Backward(stages) {
		errs := make([]error, len(stage))
		var stopping sync.WaitGroup
		for i, m := range stage {
			stopping.Go(func() { errs[i] = r.stopModule(ctx, m) })
		}
		stopping.Wait()
		all = append(all, errs...)
	}
	return errors.Join(all...)
}

func (r *Runner) stopModule(ctx context.Context, m Module) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.stopTimeout)
	defer cancel()
	result := make(chan error, 1)
	go func() { result <- m.Stop(ctx) }()
	var err error
	select {
	case err = <-result:
	case <-ctx.Done():
		err = ctx.Err()
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("stop %s: still running after %s", m.Name(), r.stopTimeout)
	}
	return fmt.Errorf("stop %s: %w", m.Name(), err)
}

func (r *Runner) expect(m Module) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = append(r.waiting, m.Name())
}

// retire retires a module now or with the others.
func (r *Runner) retire(m Retirer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.retired {
		m.Retire()
	} else {
		r.retirers = append(r.retirers, m)
	}
}

func (r *Runner) isReady(m Module) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting = slices.DeleteFunc(r.waiting, func(name string) bool { return name == m.Name() })
}

func (r *Runner) failed(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.errs = append(r.errs, err)
	}
}

package lifecycle

import (
	"context"
	"sync"
)

// Tasks are the goroutines of a module. A module that embeds Tasks is ready once it has started, and stops when they have ended.
type Tasks struct {
	ctx    context.Context
	cancel context.CancelFunc
	fail   func(error)

	// mu guards stopped, and orders Go before the Wait of Stop.
	mu      sync.Mutex
	stopped bool
	running sync.WaitGroup
}

// Begin prepares for Go. Call it first in Module.Start. The tasks get the values of ctx, and run until Stop.
func (t *Tasks) Begin(ctx context.Context, fail func(error)) {
	t.ctx, t.cancel = context.WithCancel(context.WithoutCancel(ctx))
	t.fail = fail
}

// Init calls init with the context of the tasks, so that goroutines that it starts run until Stop. Canceling ctx interrupts init.
// An error stops all tasks.
func (t *Tasks) Init(ctx context.Context, init func(ctx context.Context) error) error {
	interrupt := context.AfterFunc(ctx, t.cancel)
	err := init(t.ctx) //nolint:contextcheck // The tasks outlive the start of the module.
	if !interrupt() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		t.end()
	}
	return err
}

// Go runs a task until Stop cancels its context. If a task returns an error earlier, the module fails with that error.
func (t *Tasks) Go(task func(ctx context.Context) error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	t.running.Go(func() {
		if err := task(t.ctx); err != nil && t.ctx.Err() == nil {
			t.fail(err)
		}
	})
}

// Run is Go for a task that cannot fail.
func (t *Tasks) Run(task func(ctx context.Context)) {
	t.Go(func(ctx context.Context) error { task(ctx); return nil })
}

// Ready implements Module.
func (t *Tasks) Ready(context.Context) error { return nil }

// Stop implements Module: it cancels the context of the tasks and waits until all have ended.
func (t *Tasks) Stop(context.Context) error {
	t.end()
	return nil
}

func (t *Tasks) end() {
	t.mu.Lock()
	t.stopped = true
	t.mu.Unlock()
	t.cancel()
	t.running.Wait()
}

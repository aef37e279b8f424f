package components

import (
	"context"
	"errors"
	"sync"

	"k8s.io/klog/v2"
)

// part is a part of the server that prepares itself, and then serves until its context ends. Either may be nil.
type part struct {
	prepare func(ctx context.Context, run func(func(context.Context))) error
	serve   func(ctx context.Context) error
}

// parts are what runs beside the API, and ends together.
type parts struct {
	// stop is called when a part has ended that should not have.
	stop    func()
	running sync.WaitGroup
	// mu guards err: why parts have ended that should not have.
	mu  sync.Mutex
	err error
}

// start returns once all are prepared, one after the other, and begin to serve.
func (p *parts) start(ctx context.Context, all ...part) error {
	for _, part := range all {
		if part.prepare == nil {
			continue
		}
		err := part.prepare(ctx, func(do func(context.Context)) { p.background(ctx, do) })
		if err != nil {
			return err
		}
	}
	for _, part := range all {
		if part.serve != nil {
			p.run(ctx, part.serve)
		}
	}
	return nil
}

// background has something run that cannot fail until ctx ends.
func (p *parts) background(ctx context.Context, do func(context.Context)) {
	p.run(ctx, func(ctx context.Context) error { do(ctx); return nil })
}

// run has a part run until ctx ends. If it fails before, everything else ends too.
func (p *parts) run(ctx context.Context, part func(context.Context) error) {
	p.running.Go(func() {
		if err := part(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "A part of the server ended")
			p.mu.Lock()
			p.err = errors.Join(p.err, err)
			p.mu.Unlock()
			p.stop()
		}
	})
}

// Wait returns when everything that Start started has ended: no request or delivery is under way, no process runs. Start must
// have returned before. The error tells why a part ended before the context of Start did.
func (p *parts) Wait() error {
	p.running.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

package app

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

// start returns once all are prepared, one after the other, and begin to serve. What they have run meanwhile ends when all
// have ended to serve, for that needs it.
func (p *parts) start(ctx context.Context, all ...part) error {
	beyond, stop := context.WithCancel(context.WithoutCancel(ctx))
	interrupted := context.AfterFunc(ctx, stop)
	for _, part := range all {
		if part.prepare == nil {
			continue
		}
		err := part.prepare(beyond, func(do func(context.Context)) { p.background(beyond, do) })
		if err != nil {
			stop()
			return err
		}
	}
	if !interrupted() {
		return context.Cause(ctx)
	}
	var serving sync.WaitGroup
	for _, part := range all {
		if part.serve != nil {
			serving.Add(1)
			p.run(ctx, func(ctx context.Context) error {
				defer serving.Done()
				return part.serve(ctx)
			})
		}
	}
	context.AfterFunc(ctx, func() {
		serving.Wait()
		stop()
	})
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

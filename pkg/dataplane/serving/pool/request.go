package pool

import "time"

// longLivedAfter is how long a response takes until its request counts as long-lived. Responses that end sooner are not cut
// by applications that exit at once when they are stopped.
const longLivedAfter = 5 * time.Second

// Response is a response in progress. Its request is long-lived at once if it was upgraded or answered with an event
// stream, and otherwise after longLivedAfter. Long-lived requests do not delay the end of a backend: the application gets
// its signal, and can end them in its own way. The lock of the pool guards the fields.
type Response struct {
	timer            *time.Timer
	longLived, ended bool
}

// Respond begins a response of a backend that takes a while; endless is true if it has no end by nature.
func (p *Pool) Respond(b *Backend, endless bool) *Response {
	r := &Response{}
	if endless {
		p.outlive(b, r)
		return r
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	r.timer = time.AfterFunc(longLivedAfter, func() { p.outlive(b, r) })
	return r
}

// outlive makes a request long-lived.
func (p *Pool) outlive(b *Backend, r *Response) {
	p.mu.Lock()
	drained := false
	if !r.ended {
		r.longLived = true
		b.longLived++
		drained = p.settle(b)
	}
	p.mu.Unlock()
	p.report(b, drained)
}

// end ends the response. The lock of the pool is held.
func (r *Response) end(b *Backend) {
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
	if r.longLived {
		b.longLived--
	}
}

package gateway

import "time"

// longLivedAfter is how long a response goes on until its request counts as long-lived. Responses that are done sooner are
// not cut by applications that end at once when they are told to.
const longLivedAfter = 5 * time.Second

// stream is a response in progress. Its request is long-lived at once if it was upgraded or answered with an event stream,
// and otherwise after longLivedAfter. Long-lived requests do not hold up the end of an instance: the application is told
// that it ends, and can end them in its own way.
//
// The pool's lock guards the fields.
type stream struct {
	timer            *time.Timer
	longLived, ended bool
}

// idle reports whether an instance has none but long-lived requests.
func (i *instance) idle() bool { return i.inFlight == i.longLived }

// stream begins a response of an instance, which is long-lived now or later.
func (p *pool) stream(inst *instance, now bool) *stream {
	s := &stream{}
	if now {
		p.outlive(inst, s)
		return s
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	s.timer = time.AfterFunc(longLivedAfter, func() { p.outlive(inst, s) })
	return s
}

// outlive makes a request long-lived.
func (p *pool) outlive(inst *instance, s *stream) {
	p.mu.Lock()
	drained := false
	if !s.ended {
		s.longLived = true
		inst.longLived++
		drained = p.settle(inst)
	}
	p.mu.Unlock()
	if drained {
		p.drained(p.key, inst.name)
	}
}

// end ends the response. The pool's lock is held.
func (s *stream) end(inst *instance) {
	s.ended = true
	if s.timer != nil {
		s.timer.Stop()
	}
	if s.longLived {
		inst.longLived--
	}
}

// Streaming implements http1.Exchange.
func (x *exchange) Streaming(endless bool) {
	if x.instance != nil && x.stream == nil {
		x.stream = x.pool.stream(x.instance, endless)
	}
}

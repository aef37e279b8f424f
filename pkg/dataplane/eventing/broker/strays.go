package broker

import (
	"context"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// missing is how long events from shared segments wait in memory for a consumer that exists but was not set yet.
const missing = time.Second

// strays are the events from shared segments whose consumer exists but was not set yet. After a while they move to the
// consumer's own queue, where they neither take memory nor keep a shared segment.
type strays struct {
	mu sync.Mutex
	// waiting are the events in memory, parked the consumers whose queue has some. mu guards both.
	waiting map[types.UID][]*parcel
	parked  sets.Set[types.UID]
}

// wait keeps an event for a consumer that was not set yet.
func (s *stream) wait(target types.UID, p *parcel) {
	s.strays.mu.Lock()
	defer s.strays.mu.Unlock()
	if s.strays.waiting == nil {
		s.strays.waiting, s.strays.parked = map[types.UID][]*parcel{}, sets.New[types.UID]()
	}
	if len(s.strays.waiting[target]) == 0 {
		s.settleLater(target)
	}
	s.strays.waiting[target] = append(s.strays.waiting[target], p)
}

func (s *stream) settleLater(target types.UID) {
	s.broker.options.Clock.AfterFunc(missing, func() {
		if s.ctx.Err() == nil {
			s.settle(target)
		}
	})
}

// settle hands the events that wait for a consumer over to it, drops them if it does not exist any more, and moves them to
// its queue otherwise.
func (s *stream) settle(target types.UID) {
	s.strays.mu.Lock()
	waiting := s.strays.waiting[target]
	delete(s.strays.waiting, target)
	s.strays.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	if s.consumer(target) == nil && s.broker.options.Exists(target) {
		if err := s.park(s.ctx, target, waiting); err != nil {
			klog.FromContext(s.ctx).V(2).Info("Failed to store events for a consumer; retrying", "uid", target, "err", err)
			s.strays.mu.Lock()
			defer s.strays.mu.Unlock()
			s.strays.waiting[target] = append(waiting, s.strays.waiting[target]...)
			s.settleLater(target)
		}
		return
	}
	for _, p := range waiting {
		s.hand(target, p)
	}
}

// park appends events to the queue of a consumer, and releases their shared segments.
func (s *stream) park(ctx context.Context, target types.UID, waiting []*parcel) error {
	s.strays.mu.Lock()
	s.strays.parked.Insert(target)
	s.strays.mu.Unlock()
	records := make([]eventlog.Record, 0, len(waiting))
	for _, p := range waiting {
		// The consumer may turn out to be an ordered one.
		records = append(records, eventlog.Record{Queue: string(target), Data: p.record(p.header()), Alone: true})
	}
	if err := s.log.Append(ctx, records...); err != nil {
		return err
	}
	for _, p := range waiting {
		p.leave()
		p.from.release()
	}
	if c := s.consumer(target); c != nil {
		s.unpark(c)
	}
	return nil
}

// unpark makes a consumer read what park appended to its queue.
func (s *stream) unpark(c *consumer) {
	s.strays.mu.Lock()
	parked := s.strays.parked.Has(c.config.Load().UID)
	s.strays.mu.Unlock()
	if parked {
		c.main.resume(true)
	}
}

package broker

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery"
)

// unassignedTimeout is the time for which deliveries wait in memory for a consumer that exists but was not set yet.
const unassignedTimeout = time.Second

// unassigned has the deliveries of shared segments whose consumer exists but was not set yet. After unassignedTimeout they
// are moved to the subscriber queue, where they need neither memory nor a shared segment.
type unassigned struct {
	mu sync.Mutex
	// waiting are the deliveries in memory, stored the consumers whose queue has some. mu guards both.
	waiting map[types.UID][]*delivery.Delivery
	stored  sets.Set[types.UID]
}

// keep keeps a delivery for a consumer that was not set yet.
func (s *stream) keep(target types.UID, d *delivery.Delivery) {
	s.unassigned.mu.Lock()
	defer s.unassigned.mu.Unlock()
	if s.unassigned.waiting == nil {
		s.unassigned.waiting, s.unassigned.stored = map[types.UID][]*delivery.Delivery{}, sets.New[types.UID]()
	}
	if len(s.unassigned.waiting[target]) == 0 {
		s.resolveLater(target)
	}
	s.unassigned.waiting[target] = append(s.unassigned.waiting[target], d)
}

func (s *stream) resolveLater(target types.UID) {
	s.broker.options.Clock.AfterFunc(unassignedTimeout, func() {
		if s.ctx.Err() == nil {
			s.resolve(target)
		}
	})
}

// resolve assigns the deliveries that wait for a consumer, discards them if it does not exist anymore, or moves them to its
// queue.
func (s *stream) resolve(target types.UID) {
	s.unassigned.mu.Lock()
	waiting := s.unassigned.waiting[target]
	delete(s.unassigned.waiting, target)
	s.unassigned.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	if s.consumer(target) == nil && s.broker.options.Exists(target) {
		if err := s.store(target, waiting); err != nil {
			klog.FromContext(s.ctx).V(2).Info("Failed to store events for a consumer; retrying", "uid", target, "err", err)
			s.unassigned.mu.Lock()
			defer s.unassigned.mu.Unlock()
			s.unassigned.waiting[target] = append(waiting, s.unassigned.waiting[target]...)
			s.resolveLater(target)
		}
		return
	}
	for _, d := range waiting {
		s.assign(target, d)
	}
}

// store moves deliveries to the queue of a consumer.
func (s *stream) store(target types.UID, waiting []*delivery.Delivery) error {
	s.unassigned.mu.Lock()
	s.unassigned.stored.Insert(target)
	s.unassigned.mu.Unlock()
	if err := s.deliveries.Store(s.ctx, string(target), waiting); err != nil {
		return err
	}
	if c := s.consumer(target); c != nil {
		s.readStored(c)
	}
	return nil
}

// readStored makes a consumer read the deliveries that store moved to its queue.
func (s *stream) readStored(c *consumer) {
	s.unassigned.mu.Lock()
	stored := s.unassigned.stored.Has(c.config.Load().UID)
	s.unassigned.mu.Unlock()
	if stored {
		c.subscriber.Start(true)
	}
}

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
	stream *stream

	mu sync.Mutex
	// waiting has the deliveries in memory, stored the consumers whose queue has some. mu guards both.
	waiting map[types.UID][]*delivery.Delivery
	stored  sets.Set[types.UID]
}

// keep keeps a delivery for a consumer that was not set yet.
func (u *unassigned) keep(target types.UID, d *delivery.Delivery) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.waiting == nil {
		u.waiting, u.stored = map[types.UID][]*delivery.Delivery{}, sets.New[types.UID]()
	}
	if len(u.waiting[target]) == 0 {
		u.resolveLater(target)
	}
	u.waiting[target] = append(u.waiting[target], d)
}

func (u *unassigned) resolveLater(target types.UID) {
	u.stream.broker.options.Clock.AfterFunc(unassignedTimeout, func() {
		if u.stream.ctx.Err() == nil {
			u.resolve(target)
		}
	})
}

// resolve assigns the deliveries that wait for a consumer, discards them if it does not exist anymore, or moves them to its
// queue.
func (u *unassigned) resolve(target types.UID) {
	u.mu.Lock()
	waiting := u.waiting[target]
	delete(u.waiting, target)
	u.mu.Unlock()
	if len(waiting) == 0 {
		return
	}
	if u.stream.consumer(target) == nil && u.stream.broker.options.Exists(target) {
		if err := u.store(target, waiting); err != nil {
			klog.FromContext(u.stream.ctx).V(2).Info("Failed to store events for a consumer; retrying", "uid", target, "err", err)
			u.mu.Lock()
			defer u.mu.Unlock()
			u.waiting[target] = append(waiting, u.waiting[target]...)
			u.resolveLater(target)
		}
		return
	}
	for _, d := range waiting {
		u.stream.assign(target, d)
	}
}

// store moves deliveries to the queue of a consumer.
func (u *unassigned) store(target types.UID, waiting []*delivery.Delivery) error {
	u.mu.Lock()
	u.stored.Insert(target)
	u.mu.Unlock()
	if err := u.stream.deliveries.Store(u.stream.ctx, string(target), waiting); err != nil {
		return err
	}
	if c := u.stream.consumer(target); c != nil {
		u.readStored(c)
	}
	return nil
}

// readStored makes a consumer read the deliveries that store moved to its queue.
func (u *unassigned) readStored(c *consumer) {
	u.mu.Lock()
	stored := u.stored.Has(c.config.Load().UID)
	u.mu.Unlock()
	if stored {
		c.subscriber.Start(true)
	}
}

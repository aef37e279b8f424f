package delivery

import (
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
)

// evictor moves deliveries of a Queue from shared segments to the subscriber queue after SharedTimeout, so that other consumers
// need not wait for them.
type evictor struct {
	queue *Queue
	// timer calls evictReady. The mu of the Queue guards it.
	timer clock.Timer
}

// watch starts the timer of evictReady if ready deliveries keep shared segments. The mu of the Queue is held.
func (v *evictor) watch() {
	if q := v.queue; v.timer == nil && q.index.sharing > 0 && !q.stopped {
		v.timer = q.stream.config.Clock.AfterFunc(SharedTimeout, v.evictReady)
	}
}

// stop stops the timer. The mu of the Queue is held.
func (v *evictor) stop() {
	if v.timer != nil {
		v.timer.Stop()
	}
}

// evictReady moves the ready deliveries of shared segments to the subscriber queue once the first one has been ready for
// SharedTimeout. Deliveries stay if the segment is not needed by others and would be redelivered to all of its consumers.
func (v *evictor) evictReady() {
	q := v.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	v.timer = nil
	if q.stopped {
		return
	}
	crowded := q.stream.crowded()
	stays := func(d *Delivery) bool {
		return d.state.Record == machine.Owned || d.state.Record == machine.SharedRetry && !crowded && d.shared.whole()
	}
	for _, first := range q.index.ready.all() {
		if stays(first) {
			continue
		}
		if left := SharedTimeout - q.now().Sub(first.queued); left > 0 {
			v.timer = q.stream.config.Clock.AfterFunc(left, v.evictReady)
			return
		}
		break
	}
	for _, d := range q.index.ready.removeAll() {
		if stays(d) {
			q.index.ready.push(d)
			continue
		}
		q.behind = true
		q.apply(d, machine.Displaced)
	}
	v.watch()
}

// evictSlow appends a copy of a delivery in flight to the subscriber queue, so that its shared segment can be acknowledged.
func (v *evictor) evictSlow(d *Delivery) {
	q := v.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.stopped || d.state.Phase != machine.InFlight || !d.state.Record.Shared() {
		return
	}
	if d.state.Record == machine.SharedRetry && d.shared.whole() {
		// All consumers of the record are slow. It is redelivered to all of them if the process ends.
		q.stream.config.Clock.AfterFunc(SharedTimeout, func() { v.evictSlow(d) })
		return
	}
	q.behind = true
	q.apply(d, machine.Slow)
}

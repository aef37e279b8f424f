package consume

import (
	"sync"
	"time"
)

const (
	// ackDelay is the time for which acknowledgements to a cluster are gathered. One that is sent alone costs two entries, in the logs
	// of the consumer and of the stream, which every server syncs. Acknowledgements that are sent together share them.
	ackDelay = 100 * time.Millisecond
	// maxAcks bounds the gathered acknowledgements.
	maxAcks = 256
)

// acks gathers acknowledgements. The zero value is empty.
type acks struct {
	mu      sync.Mutex
	waiting []origin
	timer   *time.Timer // calls send while some wait
}

// add sends an acknowledgement within ackDelay.
func (a *acks) add(o origin) {
	a.mu.Lock()
	a.waiting = append(a.waiting, o)
	n := len(a.waiting)
	if n == 1 {
		if a.timer == nil {
			a.timer = time.AfterFunc(ackDelay, a.send)
		} else {
			a.timer.Reset(ackDelay)
		}
	}
	a.mu.Unlock()
	if n >= maxAcks {
		a.send()
	}
}

// send sends the gathered acknowledgements.
func (a *acks) send() {
	a.mu.Lock()
	waiting := a.waiting
	a.waiting = nil
	a.mu.Unlock()
	for _, o := range waiting {
		o.ack()
	}
}

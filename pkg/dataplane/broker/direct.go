package broker

import "time"

const (
	// maxReady bounds the deliveries that wait in memory though other consumers wait for their frames too. More than
	// that go to the lane's own queue, so that nobody waits for a slow consumer.
	maxReady = 128
	// linger is how long such a delivery may wait, or be under way, before it goes to the lane's own queue too.
	linger = time.Second
)

// takesDirectly tells whether events may be given to offer. Others are to be appended to the lane's queue.
func (l *lane) takesDirectly() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.direct && !l.ordered()
}

// offer takes a delivery from a frame that other consumers wait for too.
func (l *lane) offer(d *parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		// The log hands it over again, unless the consumer is gone.
		if l.gone {
			d.from.release()
		}
		return
	}
	if l.ordered() || l.paused || l.ready.len() >= maxReady {
		l.direct = false
	}
	if !l.direct {
		l.write(d.record(), d.from.release)
		return
	}
	d.offered = l.clock.Now()
	l.ready.push(d)
	l.kick()
	if l.lingering == nil && l.ready.len() > 0 {
		l.lingering = l.clock.AfterFunc(linger, l.spill)
	}
}

// lease lets the shared frame of a delivery go whose attempt takes long, by writing it to the own queue.
func (l *lane) lease(d *parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, underWay := l.underWay[d]; !underWay || l.stopped {
		return
	}
	d.leased = true
	l.leased[d.id] = nil
	l.direct = false
	l.write(d.record(), d.from.release)
}

// spill lets the shared frames go of deliveries that have waited long for their attempt, by moving all that wait to the
// own queue.
func (l *lane) spill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lingering = nil
	if l.stopped {
		return
	}
	for _, oldest := range l.ready.items[l.ready.head:] {
		if oldest.own {
			continue
		}
		if left := linger - l.clock.Since(oldest.offered); left > 0 {
			l.lingering = l.clock.AfterFunc(left, l.spill)
			return
		}
		break
	}
	for _, d := range l.ready.takeAll() {
		if d.own {
			l.ready.push(d)
			continue
		}
		l.direct = false
		l.write(d.record(), d.from.release)
	}
}

// settle has events come directly again when the own queue is empty. mu is held.
func (l *lane) settle() {
	if !l.direct && !l.listener.behind.Load() && !l.paused && l.own == 0 && len(l.writes) == 0 && !l.writing && !l.ordered() {
		l.direct = true
	}
}

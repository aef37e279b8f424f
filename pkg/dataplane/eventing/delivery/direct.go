package broker

import "time"

const (
	// maxReady bounds the deliveries that wait in memory though other consumers wait for their segments too. More than
	// that go to the lane's own queue, so that nobody waits for a slow consumer.
	maxReady = 128
	// linger is how long such a delivery may wait, or be under way, before it goes to the lane's own queue too.
	linger = time.Second
)

// takesDirectly tells whether events may be given to offer. Others are to be appended to the lane's queue.
func (l *lane) takesDirectly() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.settle()
	return l.direct && !l.ordered()
}

// offer takes a delivery from a segment that other consumers wait for too.
func (l *lane) offer(d *parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.gone:
		d.from.release()
		return
	case l.stopped:
		l.ready.push(d)
		return
	}
	if l.ordered() || l.paused || l.ready.len() >= maxReady {
		l.direct = false
	}
	if !l.direct {
		l.move(d)
		return
	}
	l.keep(d)
	l.kick()
	l.watch()
}

// keep has a delivery wait for its attempt in memory. mu is held.
func (l *lane) keep(d *parcel) {
	d.offered = l.clock.Now()
	l.ready.push(d)
}

// watch sees to it that deliveries do not wait long in memory that keep a shared segment. mu is held.
func (l *lane) watch() {
	if l.lingering == nil && l.ready.len() > 0 {
		l.lingering = l.clock.AfterFunc(linger, l.spill)
	}
}

// move lets the shared segment of a delivery go, by writing it to the own queue. mu is held.
func (l *lane) move(d *parcel) {
	l.direct = false
	l.rewrite(d, write{*d, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.done(d)
	}, func() {
		l.keep(d)
		l.watch()
	}})
}

// lease lets the shared segment of a delivery go whose attempt takes long, by writing it to the own queue.
func (l *lane) lease(d *parcel) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, underWay := l.underWay[d]; !underWay || l.stopped {
		return
	}
	if d.shared {
		if d.from.whole() {
			// All of its consumers take long. Their segment is repeated as a whole if the process ends.
			l.clock.AfterFunc(linger, func() { l.lease(d) })
			return
		}
		// From here on it is like one that came directly.
		d.own, d.shared = false, false
		l.own--
	}
	d.leased = true
	l.leased[d.id] = nil
	l.direct = false
	// While its record is not written, its segment stays as if there were none.
	l.write(write{*d, d.from.release, func() { l.unlease(d) }})
}

// unlease has a delivery keep its shared segment. mu is held.
func (l *lane) unlease(d *parcel) {
	d.leased = false
	delete(l.leased, d.id)
	if _, settled := l.finished[d.id]; settled {
		delete(l.finished, d.id)
		d.from.release()
	}
}

// spill lets the shared segments go of deliveries that have waited long for their attempt, by moving all that wait to the
// own queue.
func (l *lane) spill() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lingering = nil
	if l.stopped {
		return
	}
	crowded := l.crowded()
	// stays reports whether a delivery stays in memory: one of the own queue, or of a segment that nobody waits for, and that is
	// repeated as a whole if the process ends.
	stays := func(d *parcel) bool { return d.own && !(d.shared && (crowded || !d.from.whole())) }
	for _, oldest := range l.ready.items[l.ready.head:] {
		if stays(oldest) {
			continue
		}
		if left := linger - l.clock.Since(oldest.offered); left > 0 {
			l.lingering = l.clock.AfterFunc(left, l.spill)
			return
		}
		break
	}
	for _, d := range l.ready.takeAll() {
		switch {
		case stays(d):
			l.ready.push(d)
			l.watch()
		case d.shared:
			// Together with others it would come again at once.
			d.leave()
			l.move(d)
		default:
			l.move(d)
		}
	}
}

// settle has events come directly again when the own queue is empty. mu is held.
func (l *lane) settle() {
	if !l.direct && !l.listener.behind.Load() && !l.paused && l.own == 0 && len(l.writes) == 0 && !l.writing && !l.ordered() {
		l.direct = true
	}
}

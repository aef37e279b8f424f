package broker

import (
	"slices"
	"time"
)

// reorder is called when the deliveries are to be made one by one from now on, or no more: what waits for its attempt
// goes back to the log, which hands over another number of segments at a time.
func (l *lane) reorder() {
	listening := l.listener.close()
	l.mu.Lock()
	l.giveBack(nil, 0)
	l.mu.Unlock()
	if listening {
		l.listener.wake(l.ctx)
	}
}

// giveBack has the segments of a delivery, if one is given, and of all that wait come again after some time, in their
// order and before those behind them. Segments of which something is under way stay. mu is held.
func (l *lane) giveBack(first *parcel, after time.Duration) {
	stay := map[*held]bool{nil: true}
	for d := range l.underWay {
		stay[d.from] = true
		stay[l.leased[d.id]] = true
	}
	for d := range l.burying {
		stay[d.from] = true
		stay[l.leased[d.id]] = true
	}
	waiting := append(l.ready.takeAll(), l.waiting...)
	l.waiting = nil
	if first != nil {
		waiting = slices.Insert(waiting, 0, first)
	}
	// The queue is listened to until they are back, however long that takes.
	l.listener.expect()
	gone := map[*held]bool{}
	for _, d := range waiting {
		if !d.own || d.shared {
			d.leave()
			l.move(d)
			continue
		}
		if stay[d.from] {
			l.ready.push(d)
			continue
		}
		l.own--
		l.back[d.id] = d.attempts
		if !gone[d.from] {
			gone[d.from] = true
			for _, id := range d.from.finished {
				l.finished[id] = struct{}{}
			}
			d.from.segment.Nack(after)
		}
	}
}

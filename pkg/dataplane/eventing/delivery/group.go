package delivery

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

const (
	// collectFor is the time for which a group collects retries after the first one, dueWithin the maximum difference of due
	// times in one record.
	collectFor, dueWithin = 200 * time.Millisecond, time.Second
)

// group has the deliveries of one event to several consumers that share a record. It collects the retries, so that an event
// that fails for several consumers is written once.
type group struct {
	stream *Stream

	mu sync.Mutex
	// left is the number of deliveries that were neither ended nor collected, retries are the collected ones. mu guards all.
	left    int
	retries []write
	timer   clock.Timer
}

// newGroup returns the group of a record, or nil if it has fewer than two deliveries.
func newGroup(s *Stream, deliveries int) *group {
	if deliveries < 2 {
		return nil
	}
	return &group{stream: s, left: deliveries}
}

// ungroup removes a delivery from its group, with the retries to collect.
func (d *Delivery) ungroup(retries ...write) {
	g := d.group
	if g == nil {
		return
	}
	d.group = nil
	g.mu.Lock()
	defer g.mu.Unlock()
	g.left--
	g.retries = append(g.retries, retries...)
	switch {
	case len(g.retries) == 0:
	case g.left == 0:
		g.stream.config.Workers.run(g.flush)
	case g.timer == nil:
		g.timer = g.stream.config.Clock.AfterFunc(collectFor, g.flush)
	}
}

// flush writes the collected retries.
func (g *group) flush() {
	g.mu.Lock()
	retries := g.retries
	g.retries = nil
	if g.timer != nil {
		g.timer.Stop()
		g.timer = nil
	}
	g.mu.Unlock()
	slices.SortStableFunc(retries, func(a, b write) int {
		x, y := a.header, b.header
		return cmp.Or(cmp.Compare(x.Attempts, y.Attempts), compareBool(x.Unanswered, y.Unanswered), x.Due.Compare(y.Due))
	})
	for len(retries) > 0 {
		first, n := retries[0].header, 1
		for n < len(retries) && retries[n].header.Attempts == first.Attempts && retries[n].header.Unanswered == first.Unanswered &&
			retries[n].header.Due.Sub(first.Due) <= dueWithin {
			n++
		}
		g.stream.retry(retries[:n])
		retries = retries[n:]
	}
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	default:
		return 1
	}
}

package history

import (
	"fmt"
	"slices"
)

// delivery is an event of a Subscription.
type delivery struct {
	subscription string
	dead         bool
	id           string
}

// deliveries returns the attempts of each delivery in their order.
func (h *History) deliveries() map[delivery][]Attempt {
	all := map[delivery][]Attempt{}
	for _, a := range h.Attempts {
		key := delivery{a.Subscription, a.Dead, a.ID}
		all[key] = append(all[key], a)
	}
	for _, attempts := range all {
		slices.SortFunc(attempts, func(a, b Attempt) int { return int(a.Start - b.Start) })
	}
	return all
}

// gets reports whether an event is for a Subscription.
func (s *Subscription) gets(p *Post) bool {
	return s.Target == p.Target && (s.Kind == "" || s.Kind == p.Kind)
}

func succeeded(attempts []Attempt) bool {
	return slices.ContainsFunc(attempts, func(a Attempt) bool { return a.OK })
}

// fate is the end of an accepted event for one Subscription.
type fate int

const (
	lost fate = iota
	delivered
	deadLettered
	// dropped by the documented rule: all retries failed, at the subscriber and at the dead letter sink, if any.
	dropped
)

// fateOf returns the end of a delivery, and the last attempt of a dropped one.
func (s *Subscription) fateOf(id string, all map[delivery][]Attempt) (fate, *Attempt) {
	attempts, dead := all[delivery{s.Name, false, id}], all[delivery{s.Name, true, id}]
	if succeeded(attempts) {
		return delivered, nil
	}
	if succeeded(dead) {
		return deadLettered, nil
	}
	last := attempts
	if s.DeadLetter {
		last = dead
	}
	if len(last) > s.Retries {
		return dropped, &last[len(last)-1]
	}
	return lost, nil
}

// checkDelivered checks that every accepted event was delivered, dead-lettered, or dropped by the documented rule, and that no
// Subscription got an event that is not for it.
func (h *History) checkDelivered() []string {
	var found []string
	all := h.deliveries()
	posts := map[string]*Post{}
	for i := range h.Posts {
		p := &h.Posts[i]
		posts[p.ID] = p
		for j := range h.Subscriptions {
			s := &h.Subscriptions[j]
			if !p.Accepted || !s.gets(p) {
				continue
			}
			if end, _ := s.fateOf(p.ID, all); end == lost {
				found = append(found, fmt.Sprintf("event %s, accepted at %s, is lost for %s after %d attempts, %d of them at the dead letter sink",
					p.ID, p.End, s.Name, len(all[delivery{s.Name, false, p.ID}])+len(all[delivery{s.Name, true, p.ID}]), len(all[delivery{s.Name, true, p.ID}])))
			}
		}
	}
	for key := range all {
		p := posts[key.id]
		i := slices.IndexFunc(h.Subscriptions, func(s Subscription) bool { return s.Name == key.subscription })
		if p == nil || i < 0 || !h.Subscriptions[i].gets(p) {
			found = append(found, fmt.Sprintf("%s got event %q, which is not for it", key.subscription, key.id))
		}
	}
	return found
}

// checkOrdered checks that ordered Subscriptions get the events of each sender in the order of acceptance: an event is first
// attempted after each earlier one was delivered or, if it never was, attempted.
func (h *History) checkOrdered() []string {
	var found []string
	all := h.deliveries()
	for i := range h.Subscriptions {
		s := &h.Subscriptions[i]
		if !s.Ordered {
			continue
		}
		// before is the last accepted event of each sender.
		before := map[string]*Post{}
		for j := range h.Posts {
			p := &h.Posts[j]
			if !p.Accepted || !s.gets(p) {
				continue
			}
			earlier := before[p.Sender]
			before[p.Sender] = p
			attempts := all[delivery{s.Name, false, p.ID}]
			if earlier == nil || len(attempts) == 0 {
				continue
			}
			if first := attempts[0].Start; !settledBefore(all[delivery{s.Name, false, earlier.ID}], first) {
				found = append(found, fmt.Sprintf("%s got event %s at %s, before %s was settled", s.Name, p.ID, first, earlier.ID))
			}
		}
	}
	return found
}

// settledBefore reports whether a delivery succeeded, or was attempted and never succeeded, before a time.
func settledBefore(attempts []Attempt, limit Time) bool {
	if succeeded(attempts) {
		return slices.ContainsFunc(attempts, func(a Attempt) bool { return a.OK && a.Start < limit })
	}
	return len(attempts) > 0 && attempts[0].Start < limit
}

// checkCounted checks that dropped events were counted, and that no counter went backwards. A scrape counts every event that was
// dropped before the preceding scrape of the same processes began, and none that was dropped after it ended. So the counters of any
// earlier scrape bound the drops after it from below: an event that was counted too often earlier does not hide a later one that was not
// counted.
//
// The records do not bound the counters from above. An attempt has no record if it times out before the subscriber has read it, and
// is recorded as a success if its response is lost. Both may be dropped, and so may events that were stored but not accepted. Events
// that the log redelivers after a failure of the disk are dropped twice.
func (h *History) checkCounted() []string {
	ends := h.drops()
	scrapes := map[string][]Scrape{}
	for _, s := range h.Scrapes {
		scrapes[s.Processes] = append(scrapes[s.Processes], s)
	}
	var found []string
	for processes, of := range scrapes {
		for i := 1; i < len(of); i++ {
			if of[i].Dropped < of[i-1].Dropped {
				found = append(found, fmt.Sprintf("processes %s counted %.0f dropped events at %s, after %.0f at %s",
					processes, of[i].Dropped, of[i].End, of[i-1].Dropped, of[i-1].End))
			}
		}
		if len(of) < 3 {
			continue
		}
		preceding, last := of[len(of)-2], of[len(of)-1]
		until, _ := slices.BinarySearch(ends, preceding.Start+1)
		for _, s := range of[:len(of)-2] {
			since, _ := slices.BinarySearch(ends, s.End)
			if counted, want := last.Dropped-s.Dropped, until-since; counted < float64(want) {
				found = append(found, fmt.Sprintf("processes %s counted %.0f dropped events after %s, at least %d were", processes, counted, s.End, want))
				break
			}
		}
	}
	return found
}

// drops returns the times of the last attempts at dropped events, in their order.
func (h *History) drops() []Time {
	var ends []Time
	all := h.deliveries()
	for i := range h.Posts {
		for j := range h.Subscriptions {
			p, s := &h.Posts[i], &h.Subscriptions[j]
			if !p.Accepted || !s.gets(p) {
				continue
			}
			if end, last := s.fateOf(p.ID, all); end == dropped {
				ends = append(ends, last.End)
			}
		}
	}
	slices.Sort(ends)
	return ends
}

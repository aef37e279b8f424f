package simulation

import (
	"slices"
	"strings"
	"time"
)

// check ends the processes and compares the history with the guarantees.
func (h *history) check() {
	h.checkLog()
	for _, name := range h.names() {
		h.end(name).stop()
	}
	h.stopping.Wait()
	h.server.crash()
	<-time.After(time.Minute)
	for _, r := range h.ended {
		if held := r.held(); held != 0 {
			h.fail("%s holds %d bytes after its end", r.host, held)
		}
		if open := h.network.open(r.host); open != 0 {
			h.fail("%s has %d connections after its end", r.host, open)
		}
	}
	h.checkSent()
	for _, t := range h.triggers {
		if !t.temporary {
			h.checkEnds(t)
		}
		if t.Key.Name == "ordered" {
			h.checkOrder(t)
		}
	}
}

// checkLog fails if the log has messages at the end.
func (h *history) checkLog() {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	for _, s := range h.streams {
		stream := h.server.streams["KN_local_"+string(s.UID)]
		if stream == nil {
			h.fail("the log has no stream of %s", s.Key)
		} else if len(stream.messages) > 0 {
			h.fail("the log of %s has %v at the end", s.Key, stream.subjects())
		}
	}
}

// checkSent fails if an endpoint got an event of others.
func (h *history) checkSent() {
	byID := map[string]*sent{}
	for _, e := range h.events {
		byID[e.id] = e
	}
	for _, a := range h.attempts {
		t := h.triggers[slices.IndexFunc(h.triggers, func(t *trigger) bool { return a.url == t.Subscriber.URL || t.deadLettered(a.url) })]
		if e := byID[a.id]; e == nil || !t.matches(e) {
			h.fail("%s got %s, which is not for it", a.url, a.id)
		}
	}
}

func (t *trigger) matches(e *sent) bool { return e.to == t.Stream && (!t.typed || e.kind == "x") }

// deadLettered reports whether a URL is the dead letter sink or stands for the dead letter store of a Trigger.
func (t *trigger) deadLettered(url string) bool {
	return url == t.DeadLetter.URL || url == storeURL(t.Key.Name)
}

// checkEnds fails unless each accepted event was delivered, dead-lettered or dropped: exactly once, or at least once in rough
// histories.
func (h *history) checkEnds(t *trigger) {
	ends := map[string]int{}
	for _, a := range h.attempts {
		if a.ok && (a.url == t.Subscriber.URL || t.deadLettered(a.url)) {
			ends[a.id]++
		}
	}
	exactly := !h.rough && !t.reordered && !h.shared.Has(t.Stream)
	missing := []string{}
	for _, e := range h.events {
		if !t.matches(e) {
			continue
		}
		switch n := ends[e.id]; {
		case n == 0 && e.accepted:
			missing = append(missing, e.id)
		case n > 1 && exactly && e.accepted:
			h.fail("%s: event %s ended %d times", t.Key, e.id, n)
		}
	}
	if dropped := h.drops[t.Key.String()]; dropped < len(missing) {
		h.fail("%s: %d events were dropped, but these were neither delivered nor dead-lettered: %s", t.Key, dropped, strings.Join(missing, " "))
	} else if exactly && dropped > len(missing) && h.allAccepted() {
		h.fail("%s: %d events were dropped, but only these were neither delivered nor dead-lettered: %s", t.Key, dropped, strings.Join(missing, " "))
	}
}

// allAccepted reports whether each event was accepted. A rejected one may be stored in part.
func (h *history) allAccepted() bool {
	return !slices.ContainsFunc(h.events, func(e *sent) bool { return !e.accepted })
}

// checkOrder fails unless first attempts were made in the order of acceptance.
func (h *history) checkOrder(t *trigger) {
	var firsts []string
	end := time.Duration(0)
	for _, a := range h.attempts {
		if a.url != t.Subscriber.URL {
			continue
		}
		if !h.rough && !h.shared.Has(t.Stream) && a.begin < end {
			h.fail("%s: an attempt at %s began before the previous one ended", t.Key, a.id)
		}
		end = a.end
		if !slices.Contains(firsts, a.id) {
			firsts = append(firsts, a.id)
		}
	}
	if !slices.IsSorted(firsts) {
		h.fail("%s: events were sent in the order %v", t.Key, firsts)
	}
}

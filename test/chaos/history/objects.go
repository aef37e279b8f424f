package history

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// linearizeLimit bounds the search for a linearization of one object.
const linearizeLimit = time.Minute

// register is the state of one object. Controllers write its status, so its version is only known to be at least floor.
type register struct {
	exists bool
	value  string
	floor  uint64
}

// step applies an operation to the state of its object; ok is false if the state does not permit its result. An operation with
// an unknown result is always permitted: it has no end, so it may be placed after all others, where no read sees it.
func (r register) step(op *Operation) (next register, ok bool) {
	switch op.Result {
	case NotFound:
		return r, !r.exists
	case Exists:
		return r, r.exists
	case Conflict:
		// A controller may have changed the version. An update of a missing object conflicts too.
		return r, true
	case Unknown:
		return r.unknown(op), true
	}
	written := register{exists: true, value: op.Value, floor: op.Version}
	switch op.Verb {
	case Get:
		return written, r.exists && r.value == op.Value && op.Version >= r.floor
	case Create:
		return written, !r.exists && op.Version > r.floor
	case Update:
		return written, r.exists && op.Base >= r.floor && op.Version > op.Base
	case Patch:
		return written, r.exists && op.Version > r.floor
	case Delete:
		return register{floor: r.floor + 1}, r.exists
	}
	return r, false
}

// unknown applies a write without a response.
func (r register) unknown(op *Operation) register {
	written := register{exists: true, value: op.Value, floor: r.floor + 1}
	switch {
	case op.Verb == Create && !r.exists:
		return written
	case op.Verb == Update && r.exists && op.Base >= r.floor:
		written.floor = op.Base + 1
		return written
	case op.Verb == Patch && r.exists:
		return written
	case op.Verb == Delete && r.exists:
		return register{floor: r.floor + 1}
	}
	return r
}

var model = porcupine.Model{
	Init: func() any { return register{} },
	Step: func(state, input, _ any) (bool, any) {
		next, ok := state.(register).step(input.(*Operation))
		return ok, next
	},
}

// byKey returns the operations of each object.
func (h *History) byKey() map[string][]*Operation {
	all := map[string][]*Operation{}
	for i := range h.Operations {
		op := &h.Operations[i]
		all[op.Key] = append(all[op.Key], op)
	}
	return all
}

// checkLinearizable checks that the operations of each object have an order that a register with compare-and-set permits.
func (h *History) checkLinearizable() []string {
	var found []string
	for key, operations := range h.byKey() {
		var all []porcupine.Operation
		for _, op := range operations {
			end := int64(op.End)
			if op.Result == Unknown {
				if op.Verb == Get {
					continue
				}
				end = math.MaxInt64
			}
			all = append(all, porcupine.Operation{ClientId: op.Client, Input: op, Call: int64(op.Start), Return: end})
		}
		if result := porcupine.CheckOperationsTimeout(model, all, linearizeLimit); result != porcupine.Ok {
			text := fmt.Sprintf("object %s is not linearizable (%s):", key, result)
			for _, op := range operations {
				text += fmt.Sprintf("\n  %s-%s %s %q base %d version %d: %s", op.Start, op.End, op.Verb, op.Value, op.Base, op.Version, op.Result)
			}
			found = append(found, text)
		}
	}
	return found
}

// checkReadable checks that the last acknowledged write of each object is the one at the end, unless a later operation may have
// replaced it.
func (h *History) checkReadable() []string {
	var found []string
	for key, operations := range h.byKey() {
		last := lastWrite(operations)
		if last == nil {
			continue
		}
		replaced := slices.ContainsFunc(operations, func(op *Operation) bool {
			return op.End >= last.Start && (op.Verb == Delete && op.Result == OK || op.Verb == Delete && op.Result == Unknown)
		})
		version, exists := h.Objects[key]
		switch {
		case !exists && !replaced:
			found = append(found, fmt.Sprintf("object %s is missing, although version %d was acknowledged", key, last.Version))
		case exists && version < last.Version:
			found = append(found, fmt.Sprintf("object %s has version %d, although version %d was acknowledged", key, version, last.Version))
		}
	}
	return found
}

// lastWrite returns the acknowledged write with the highest version, nil without one.
func lastWrite(operations []*Operation) *Operation {
	var last *Operation
	for _, op := range operations {
		if op.Result == OK && op.Verb != Get && op.Verb != Delete && (last == nil || op.Version > last.Version) {
			last = op
		}
	}
	return last
}

// sequence is the state of a watch while its events are checked.
type sequence struct {
	live map[string]uint64
	seen map[uint64]string
	// ranges are the versions that the watch covers: from a list, exclusive, to the last event before the next list.
	ranges []versions
}

type versions struct{ after, last uint64 }

// checkWatches checks that each watch received every acknowledged write between its first and last version, in the order of
// versions, and that its objects are the ones at the end.
func (h *History) checkWatches() []string {
	var found []string
	watches := map[string]*sequence{}
	for _, event := range h.WatchEvents {
		if watches[event.Watch] == nil {
			watches[event.Watch] = &sequence{seen: map[uint64]string{}}
		}
		if fault := watches[event.Watch].apply(event); fault != "" {
			found = append(found, fmt.Sprintf("watch %s at %s: %s %s at version %d: %s", event.Watch, event.At, event.Change, event.Key, event.Version, fault))
		}
	}
	for name, watch := range watches {
		if !maps.Equal(watch.live, h.Objects) {
			found = append(found, fmt.Sprintf("watch %s has %d objects at the end that differ from the %d that exist", name, len(watch.live), len(h.Objects)))
		}
		for i := range h.Operations {
			op := &h.Operations[i]
			if op.Result == OK && op.Verb != Get && op.Verb != Delete && watch.covers(op.Version) && watch.seen[op.Version] != op.Key {
				found = append(found, fmt.Sprintf("watch %s has a gap: %s of %s at version %d", name, op.Verb, op.Key, op.Version))
			}
		}
	}
	return found
}

func (s *sequence) covers(version uint64) bool {
	return slices.ContainsFunc(s.ranges, func(r versions) bool { return r.after < version && version <= r.last })
}

// apply adds an event, and describes its fault if it does not fit.
func (s *sequence) apply(event WatchEvent) string {
	if event.Change == Listed {
		s.live = map[string]uint64{}
		s.ranges = append(s.ranges, versions{event.Version, event.Version})
		return ""
	}
	if len(s.ranges) == 0 {
		return "an event before the first list"
	}
	current := &s.ranges[len(s.ranges)-1]
	_, exists := s.live[event.Key]
	if event.Change == Item {
		s.live[event.Key] = event.Version
		return ""
	}
	before := current.last
	current.last = max(before, event.Version)
	if event.Change == Deleted {
		delete(s.live, event.Key)
	} else {
		s.live[event.Key] = event.Version
		s.seen[event.Version] = event.Key
	}
	switch {
	case event.Version <= before:
		return fmt.Sprintf("it follows version %d", before)
	case exists && event.Change == Added:
		return "the object was already there"
	case !exists && event.Change != Added:
		return "the object was not there"
	}
	return ""
}

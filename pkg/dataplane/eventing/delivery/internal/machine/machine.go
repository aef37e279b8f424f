// Package machine is the state machine of a delivery: states, events, effects and the transitions between states. It has no
// locks, no clock and no I/O. Queues of package delivery apply events to states and execute the effects. docs/eventing.md draws
// the transitions.
package machine

// State is the state of a delivery: the progress of its event towards the endpoint, and the records of the event log that
// keep it durable meanwhile.
type State struct {
	Phase  Phase
	Record Record
}

// Phase is the progress of a delivery.
type Phase uint8

const (
	// Logged means that memory does not hold the delivery, the event log does.
	Logged Phase = iota
	// Ready waits for a worker.
	Ready
	// Waiting waits for the due time of the next attempt.
	Waiting
	// InFlight means that an attempt was started.
	InFlight
	// Storing means that a record that replaces the current one is being appended to the subscriber queue or the retry queue.
	Storing
	// DeadLettering means that a delivery to the dead letter sink or the dead letter store exists in memory only.
	DeadLettering
	// Delivered means that the subscriber accepted the event.
	Delivered
	// DeadLettered means that the delivery to the dead letter sink ended, or the event log has it.
	DeadLettered
	// Dropped means that neither the subscriber, nor a dead letter sink or the dead letter store accepted the event. The drop is counted.
	Dropped
	// Removed means that the consumer does not exist anymore.
	Removed
)

var phaseNames = [...]string{
	Logged: "Logged", Ready: "Ready", Waiting: "Waiting", InFlight: "InFlight", Storing: "Storing", DeadLettering: "DeadLettering",
	Delivered: "Delivered", DeadLettered: "DeadLettered", Dropped: "Dropped", Removed: "Removed",
}

func (p Phase) String() string { return phaseNames[p] }

// Record is the kind of record that the event log has of a delivery, by the acknowledgement that it needs.
type Record uint8

const (
	// None means that the event log has no record of the delivery.
	None Record = iota
	// Shared is a record that other consumers need too, in the shared queue, or the record of the delivery that a dead letter
	// reports.
	Shared
	// SharedRetry is a record of the retry queue, which other consumers need too.
	SharedRetry
	// Owned is a record of the subscriber queue.
	Owned
	// Copying is Shared, while a copy of the record is being appended to the subscriber queue.
	Copying
	// Copied is a record of the subscriber queue that was not read yet.
	Copied
	// CopyingStale is Copying, but the delivery does not need the record anymore.
	CopyingStale
	// Stale is Copied, but the delivery does not need the record anymore. It is acknowledged when it is read.
	Stale
)

var recordNames = [...]string{
	None: "None", Shared: "Shared", SharedRetry: "SharedRetry", Owned: "Owned", Copying: "Copying", Copied: "Copied",
	CopyingStale: "CopyingStale", Stale: "Stale",
}

func (r Record) String() string { return recordNames[r] }

// Event is a fact that changes the state of a delivery.
type Event uint8

const (
	// Offered means that a record for several consumers was read, and the subscriber keeps up.
	Offered Event = iota
	// OfferedBehind means that a record for several consumers was read, and the subscriber does not keep up, or wants events in order.
	OfferedBehind
	// Read means that a record of the subscriber queue or the retry queue was read.
	Read
	// Due means that the time of the next attempt has come, or the endpoint answers again.
	Due
	// Started means that a worker, the concurrency limiter and the namespace's share admit the attempt.
	Started
	// Slow means that the attempt takes so long that other consumers must not wait for the shared segment.
	Slow
	// Succeeded means that the endpoint accepted the event, and its reply is durable.
	Succeeded
	// Failed means that the attempt failed and will be repeated, or could not be made because the endpoint is unresolved.
	Failed
	// FailedInOrder is like Failed, but the events behind this one must wait for it.
	FailedInOrder
	// Undeliverable means that the attempt failed permanently, and a dead letter sink or the dead letter store takes the event.
	Undeliverable
	// Discarded means that the attempt failed permanently, and nothing takes dead letters.
	Discarded
	// Aborted means that the attempt was canceled because the process stops or another replica owns the stream.
	Aborted
	// DeadLetterEnded means that the delivery to the dead letter sink ended, or the event log has it.
	DeadLetterEnded
	// Displaced means that memory or a shared segment is needed for other deliveries, or the process stops.
	Displaced
	// Returned means that the segment is rejected, because the endpoint became unresolved or the order of deliveries changed.
	Returned
	// Appended means that the event log has the record that replaces the current one.
	Appended
	// Rejected means that the event log did not accept the record.
	Rejected
	// CopyAppended means that the event log has the copy of the record.
	CopyAppended
	// CopyRejected means that the event log did not accept the copy.
	CopyRejected
	// CopyRead means that the copy was read from the subscriber queue.
	CopyRead
	// ConsumerRemoved means that the consumer does not exist anymore.
	ConsumerRemoved
)

var eventNames = [...]string{
	Offered: "Offered", OfferedBehind: "OfferedBehind", Read: "Read", Due: "Due", Started: "Started", Slow: "Slow",
	Succeeded: "Succeeded", Failed: "Failed", FailedInOrder: "FailedInOrder", Undeliverable: "Undeliverable", Discarded: "Discarded",
	Aborted: "Aborted", DeadLetterEnded: "DeadLetterEnded", Displaced: "Displaced", Returned: "Returned", Appended: "Appended",
	Rejected: "Rejected", CopyAppended: "CopyAppended", CopyRejected: "CopyRejected", CopyRead: "CopyRead",
	ConsumerRemoved: "ConsumerRemoved",
}

func (e Event) String() string { return eventNames[e] }

// Effects is a set of actions that a transition requires.
type Effects uint16

const (
	// Enqueue appends the delivery to the ready queue.
	Enqueue Effects = 1 << iota
	// Schedule waits until the delivery is due.
	Schedule
	// Attempt makes an attempt.
	Attempt
	// Ungroup removes the delivery from the group that shares its record.
	Ungroup
	// Append appends a record that replaces the current one.
	Append
	// AppendCopy appends a copy of the current record to the subscriber queue.
	AppendCopy
	// Return rejects the segment, so that the event log redelivers it.
	Return
	// SendDeadLetter creates the delivery to the dead letter sink.
	SendDeadLetter
	// ReleaseShared acknowledges the delivery's part of a shared segment.
	ReleaseShared
	// ReleaseOwned acknowledges the delivery's part of a segment of the subscriber queue.
	ReleaseOwned
)

// Next returns the state that follows an event, and the effects of the transition. It returns false if the event cannot
// occur in the state.
func (s State) Next(e Event) (State, Effects, bool) {
	phase, effects, ok := s.Phase.next(e)
	if !ok {
		return s, 0, false
	}
	record, more, ok := s.Record.next(e)
	if !ok {
		return s, 0, false
	}
	return State{phase, record}, effects | more, true
}

// next returns the phase that follows an event.
func (p Phase) next(e Event) (Phase, Effects, bool) {
	if e == CopyAppended || e == CopyRejected || e == CopyRead {
		// The copy of a record does not affect the progress.
		return p, 0, true
	}
	switch p {
	case Logged:
		switch e {
		case Offered:
			return Ready, Enqueue, true
		case OfferedBehind:
			return Storing, Append, true
		case Read:
			return Waiting, Schedule, true
		case ConsumerRemoved:
			return Removed, Ungroup, true
		}
	case Ready:
		switch e {
		case Started:
			return InFlight, Attempt, true
		case Displaced:
			return Storing, Ungroup | Append, true
		case Returned:
			return Logged, Return, true
		case ConsumerRemoved:
			return Removed, Ungroup, true
		}
	case Waiting:
		switch e {
		case Due:
			return Ready, Enqueue, true
		case Displaced:
			return Storing, Ungroup | Append, true
		case Returned:
			return Logged, Return, true
		case ConsumerRemoved:
			return Removed, Ungroup, true
		}
	case InFlight:
		switch e {
		case Slow:
			return InFlight, AppendCopy, true
		case Succeeded:
			return Delivered, Ungroup, true
		case Discarded:
			return Dropped, Ungroup, true
		case Failed:
			return Storing, Append, true
		case FailedInOrder:
			return Logged, Return, true
		case Undeliverable:
			return DeadLettering, SendDeadLetter, true
		case Aborted:
			return Ready, Enqueue, true
		}
	case Storing:
		switch e {
		case Appended:
			return Logged, Ungroup, true
		case Rejected:
			return Waiting, Schedule, true
		case ConsumerRemoved:
			return Removed, Ungroup, true
		}
	case DeadLettering:
		if e == DeadLetterEnded {
			return DeadLettered, Ungroup, true
		}
	}
	return p, 0, false
}

// next returns the records that follow an event.
func (r Record) next(e Event) (Record, Effects, bool) {
	switch e {
	case Succeeded, Discarded, DeadLetterEnded, Appended, ConsumerRemoved:
		return r.release()
	case Offered, OfferedBehind:
		return r, 0, r.Shared()
	case Read:
		return r, 0, r == SharedRetry || r == Owned
	case Slow:
		if r.Shared() {
			return Copying, 0, true
		}
	case Returned, FailedInOrder:
		return r, 0, r == Owned
	case CopyAppended:
		switch r {
		case Copying:
			return Copied, ReleaseShared, true
		case CopyingStale:
			return Stale, ReleaseShared, true
		default:
			// The copy was read before.
			return r, 0, r == None || r == Owned
		}
	case CopyRejected:
		switch r {
		case Copying:
			return Shared, 0, true
		case CopyingStale:
			return None, ReleaseShared, true
		default:
			// The event log has the copy nevertheless.
			return r, 0, r == None || r == Owned
		}
	case CopyRead:
		switch r {
		case Copying:
			return Owned, ReleaseShared, true
		case CopyingStale:
			return None, ReleaseShared | ReleaseOwned, true
		case Stale:
			return None, ReleaseOwned, true
		case Copied:
			return Owned, 0, true
		}
	default:
		// The event affects the progress only.
		return r, 0, r != None && r != CopyingStale && r != Stale
	}
	return r, 0, false
}

// release returns the records after the delivery needs them no more.
func (r Record) release() (Record, Effects, bool) {
	switch r {
	case Shared, SharedRetry:
		return None, ReleaseShared, true
	case Owned:
		return None, ReleaseOwned, true
	case Copying:
		return CopyingStale, 0, true
	case Copied:
		return Stale, 0, true
	}
	return r, 0, false
}

// Held reports whether memory holds the delivery.
func (p Phase) Held() bool { return p >= Ready && p <= DeadLettering }

// Busy reports whether the segment of the delivery must not be rejected now.
func (p Phase) Busy() bool { return p == InFlight || p == Storing || p == DeadLettering }

// Shared reports whether other consumers wait for the acknowledgement of the delivery's segment.
func (r Record) Shared() bool { return r == Shared || r == SharedRetry }

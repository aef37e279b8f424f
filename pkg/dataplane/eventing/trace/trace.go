// Package trace records what happens to events: their acceptance, and each attempt to deliver them. It finds the records of an event by
// its ID or by its W3C trace ID.
//
// A Store keeps the records of each namespace in segments of its own: files that are written once, each with a sorted index when it is
// full. Memory holds the index of the segments that are being written, and one hash for 256 entries of the others. Records are added to
// a bounded queue, which a goroutine writes every 50 ms, or less often if that takes long: adding never waits for the disk. What is written survives the end of the process,
// also by kill -9; it is not synced, so a loss of power may take the last seconds.
package trace

import (
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Record is a fact about an event in a Broker or Channel. Exactly one of Acceptance and Attempt is set.
type Record struct {
	// Stream and StreamUID identify the Broker or Channel.
	Stream    eventing.Key
	StreamUID types.UID
	// ID and Source identify the event for its producer. Texts of records have at most MaxText bytes; the rest is cut.
	ID, Source string
	// Accepted is the time at which the stream accepted the event. With Stream, ID and Source it identifies the acceptance.
	Accepted time.Time

	Acceptance *Acceptance
	Attempt    *Attempt
}

// Acceptance states that a stream accepted an event.
type Acceptance struct {
	// Attributes are the attributes of the event; ID and source are left out when the record is written. Cut is true if some are
	// missing or not complete, because they take more than 8 KiB.
	Attributes []event.Attribute
	Cut        bool
	// V03 is true if the specversion of the event is 0.3.
	V03 bool
	// TraceID is the W3C trace ID in 32 hexadecimal digits, or empty.
	TraceID string
	// Sender is the verified name of the sender, or empty. Address is the IP address from which the event was sent, or empty.
	Sender, Address string
	// Cause is the delivery to which the event is a reply. Its zero value stands for an event that a client sent.
	Cause Cause
	// Redelivered is true for a stored event, such as a dead letter, that is delivered again to the consumers in Matched, whatever the filters.
	Redelivered bool
	// Matched are the consumers that the event is delivered to, at most 1024 of them; MatchedCount is their number. Exceeded are those
	// whose filters exceeded their budget.
	Matched, Exceeded []eventing.Key
	MatchedCount      int
	// Filters is the Fingerprint of the filters of all consumers of the stream.
	Filters uint64
}

// Event returns the event of the acceptance in a record, without its data and headers.
func (a *Acceptance) Event(r *Record) *event.Event {
	return &event.Event{V03: a.V03, Attributes: append(slices.Clone(a.Attributes),
		event.Attribute{Name: event.ID, Value: r.ID}, event.Attribute{Name: event.Source, Value: r.Source})}
}

// Cause is the delivery of another event of the same stream.
type Cause struct {
	// ID, Source and Accepted identify the other event.
	ID, Source string
	Accepted   time.Time
	Consumer   eventing.Key
}

// Role is what an endpoint is for a delivery.
type Role byte

// The roles of endpoints. Replies of a Trigger's subscriber are accepted by the Broker, without an attempt.
const (
	Subscriber Role = iota
	Reply
	DeadLetter
	// DeadLetterStore is the built-in dead letter store.
	DeadLetterStore
)

// Outcome is what follows an attempt.
type Outcome byte

const (
	// Delivered means that the endpoint accepted the event.
	Delivered Outcome = iota
	// Answered means that the subscriber accepted the event with a reply, which is sent to the reply address next.
	Answered
	// Retried means that the attempt failed and is repeated.
	Retried
	// DeadLettered means that the attempt failed, and the event is sent to the dead letter sink or the dead letter store.
	DeadLettered
	// Dropped means that the attempt failed, and nothing follows.
	Dropped
)

// Attempt states that an event was sent to an endpoint.
type Attempt struct {
	// Consumer is the Trigger or Subscription.
	Consumer eventing.Key
	Role     Role
	Outcome  Outcome
	// Number counts the attempts to send the event to the endpoint, from 1.
	Number int
	// Start and Duration are the time of the attempt. Next is the time of the next one if Outcome is Retried.
	Start    time.Time
	Duration time.Duration
	Next     time.Time
	// Address is the URL of the endpoint, without credentials and query. Code is the HTTP status of the response, 0 without one.
	Address string
	Code    int
	// Error is why the attempt failed, or why the reply of a successful one was not accepted.
	Error string
	// ReplyID and ReplySource identify the reply; both are empty without one. ReplyAccepted is the time at which the Broker accepted it,
	// zero if it did not.
	ReplyID, ReplySource string
	ReplyAccepted        time.Time
}

// Failed reports whether the attempt failed.
func (a *Attempt) Failed() bool { return a.Outcome >= Retried }

// MaxText is the maximum length of a text in a record, in bytes.
const MaxText = 1024

// Cut returns a text as records have it.
func Cut(text string) string { return text[:min(len(text), MaxText)] }

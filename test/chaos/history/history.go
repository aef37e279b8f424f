// Package history contains the record of a chaos run and the checks over it. The checks depend on nothing but the record.
package history

import (
	"fmt"
	"time"
)

// Time is the time since the start of a run.
type Time = time.Duration

// Result is the result of an operation on an object.
type Result string

// Results. Unknown is the result of an operation without a response, which may have been executed.
const (
	OK       Result = "OK"
	NotFound Result = "NotFound"
	Exists   Result = "Exists"
	Conflict Result = "Conflict"
	Unknown  Result = "Unknown"
)

// Verb is the verb of an operation on an object.
type Verb string

// Verbs. Update requires a resource version, Patch does not.
const (
	Create Verb = "create"
	Get    Verb = "get"
	Update Verb = "update"
	Patch  Verb = "patch"
	Delete Verb = "delete"
)

// Operation is one request for one object. Each write has its own value.
type Operation struct {
	Client int
	// Key is the object's namespace and name.
	Key  string
	Verb Verb
	// Value is the value that is written, or that was read.
	Value string
	// Base is the resource version that an update requires, Version the one in the response.
	Base, Version uint64
	Result        Result
	Start, End    Time
}

// Change is the type of a WatchEvent.
type Change string

// Changes. Listed starts a new sequence at the version of a list, Item is an object of that list.
const (
	Listed   Change = "listed"
	Item     Change = "item"
	Added    Change = "added"
	Modified Change = "modified"
	Deleted  Change = "deleted"
)

// WatchEvent is an event that a watch received. A watch that ends resumes at its last version, or lists again.
type WatchEvent struct {
	Watch   string
	Change  Change
	Key     string
	Version uint64
	At      Time
}

// Answer is the response of an application to a request.
type Answer struct {
	Service string
	// Limit is the containerConcurrency, Most the maximum number of requests that the backend had at a time.
	Limit, Most int
	At          Time
}

// Subscription is a Trigger or Subscription.
type Subscription struct {
	// Name is unique; Target is the address to which its events are posted.
	Name, Target string
	// Kind is the only type of events that it gets, all if empty.
	Kind    string
	Ordered bool
	// Retries is the number of retries before an event is dead-lettered or, without DeadLetter, dropped.
	Retries    int
	DeadLetter bool
}

// Post is an event that was posted. A sender posts one event at a time.
type Post struct {
	Sender, Target, ID, Kind string
	// Accepted is true if it was answered with 202.
	Accepted   bool
	Start, End Time
}

// Attempt is a request with an event that a subscriber received.
type Attempt struct {
	// Subscription is the name of the Subscription. Dead is true at its dead letter sink.
	Subscription string
	Dead         bool
	ID           string
	// OK is true if the response was a success.
	OK         bool
	Start, End Time
}

// Scrape is the sum of the counters of dropped events of all processes.
type Scrape struct {
	// Processes identifies the processes, whose counters start at 0.
	Processes  string
	Dropped    float64
	Start, End Time
}

// Origin is the namespace of some content, and the namespace in which it was seen.
type Origin struct{ Place, Want, Got string }

// Fault is a fault that was caused from Begin to End.
type Fault struct {
	Name       string
	Begin, End Time
}

// Success is a successful probe of one aspect of the service, such as writes.
type Success struct {
	Aspect     string
	Start, End Time
}

// History is the record of a run.
type History struct {
	Operations    []Operation
	WatchEvents   []WatchEvent
	Answers       []Answer
	Subscriptions []Subscription
	Posts         []Post
	Attempts      []Attempt
	Scrapes       []Scrape
	Origins       []Origin
	Faults        []Fault
	Successes     []Success
	// Objects are the versions of all objects at the end, by key.
	Objects map[string]uint64
	// Unready describes objects that were not ready at the end.
	Unready []string
}

// shown is the number of violations of one promise that Check describes.
const shown = 5

// Check returns the violations of all promises.
func (h *History) Check() []string {
	var all []string
	for _, check := range []func() []string{
		h.checkLinearizable, h.checkReadable, h.checkWatches, h.checkConcurrency, h.checkDelivered, h.checkOrdered, h.checkCounted, h.checkOrigins,
	} {
		found := check()
		all = append(all, found[:min(len(found), shown)]...)
		if more := len(found) - shown; more > 0 {
			all = append(all, fmt.Sprintf("and %d more of these", more))
		}
	}
	for _, object := range h.Unready {
		all = append(all, "not ready at the end: "+object)
	}
	return all
}

// Pending returns the number of deliveries and watches that have not reached the end of the run.
func (h *History) Pending() int { return len(h.checkDelivered()) + len(h.checkWatches()) }

// Package eventing has the immutable values that controllers pass to the data plane of Eventing (streams, consumers), and the health of
// deliveries that it reports.
package eventing

import (
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// Kind is the kind of an object of Eventing.
type Kind string

// The kinds of streams, and of consumers.
const (
	Broker       Kind = "Broker"
	Channel      Kind = "Channel"
	Trigger      Kind = "Trigger"
	Subscription Kind = "Subscription"
)

// MaxPartitions is the greatest number of partitions of a stream.
const MaxPartitions = 16

// Key names an object of Eventing, or a partition of a stream. Its text form is for logs.
type Key struct {
	Kind            Kind
	Namespace, Name string
	// Partition is the number of a partition of a stream, less than Stream.Partitions. It is 0 for the stream itself, and for all other
	// objects.
	Partition int `json:",omitempty"`
}

// String returns kind, namespace and name, such as "Broker default/orders", and the number of a partition after the first one.
func (k Key) String() string {
	name := string(k.Kind) + " " + k.Namespace + "/" + k.Name
	if k.Partition > 0 {
		name += "/" + strconv.Itoa(k.Partition)
	}
	return name
}

// Whole returns the key of the object.
func (k Key) Whole() Key { return k.Part(0) }

// Part returns the key of a partition of the object.
func (k Key) Part(partition int) Key {
	k.Partition = partition
	return k
}

// Label returns the name of the object in traces and metrics, as Knative forms it, such as "broker:orders.default".
func (k Key) Label() string {
	return strings.ToLower(string(k.Kind)) + ":" + k.Name + "." + k.Namespace
}

// Stream is a Broker or a Channel: it accepts events and keeps them until they are delivered to all its consumers. Immutable.
type Stream struct {
	Key Key
	// UID is the original UID of the object. It distinguishes the stream from an earlier one of the same name, whose events it does
	// not inherit.
	UID types.UID
	// Memory keeps the events in memory instead of on disk: they do not survive a restart.
	Memory bool
	// Partitions is the number of partitions, among which replicas share the work. Each has a log of its own. It never decreases; 0 means 1.
	Partitions int
	// Senders restricts the senders of events. Nil admits all senders.
	Senders *Senders
}

// Senders restricts the senders of events to a stream. Immutable.
type Senders struct {
	// Policies are the ready EventPolicies of the stream, in the order in which they are asked: the first one that names a sender decides.
	Policies []SenderPolicy
	// Unready are the names of the EventPolicies of the stream that have no effect, because they are not ready.
	Unready []string
	// Default applies without Policies.
	Default AuthorizationMode
}

// SenderPolicy is an EventPolicy that is ready. Immutable.
type SenderPolicy struct {
	Name string
	// Subjects are the names of the senders. A last character * matches any rest of a name.
	Subjects []string
	// Filters must all pass an event.
	Filters []Filter
}

// AuthorizationMode restricts the senders of events to a stream without policies.
type AuthorizationMode string

// The modes of authorization.
const (
	AllowAll           AuthorizationMode = "allow-all"
	AllowSameNamespace AuthorizationMode = "allow-same-namespace"
	DenyAll            AuthorizationMode = "deny-all"
)

// Consumer is a Trigger or a Subscription: it receives the events of a stream that pass its filters. Immutable.
type Consumer struct {
	Key Key
	// UID is the original UID of the object. It distinguishes the consumer from an earlier one of the same name, whose undelivered
	// events it does not inherit.
	UID types.UID
	// Stream and StreamUID identify the consumer's stream.
	Stream    Key
	StreamUID types.UID

	// Attributes is the exact filter of a Trigger, which applies without Filters. Nil passes every event.
	Attributes map[string]string
	// Filters are the filters of a Trigger; an event must pass all.
	Filters []Filter

	// Subscriber receives the events. Without one Reply receives them, and its responses are not replies. While Subscriber or Reply is
	// unresolved, events that pass the filters are kept, and no attempt is made.
	Subscriber Endpoint
	// Reply receives the subscriber's replies; without a URL they are dropped. Replies to a Trigger are sent to its stream instead.
	Reply Endpoint
	// DeadLetter receives events that cannot be delivered. While it is unresolved, they are kept. Without one the dead letter store gets
	// them, or they are dropped if NoDeadLetterStore is true.
	DeadLetter        Endpoint
	NoDeadLetterStore bool
	Delivery          Delivery
	// Ordered is true if events are delivered one at a time in the order of acceptance; an event that is retried delays the next.
	Ordered bool
	// Account authenticates deliveries to endpoints with an audience. Without one, their events are kept, and no attempt is made.
	Account Account
}

// Account is a ServiceAccount of a consumer, in the namespace of the consumer.
type Account struct {
	// Name is empty without an account.
	Name string
	// UID distinguishes the account from an earlier one of the same name, whose tokens are not valid anymore.
	UID types.UID
}

// Filter is an expression over the attributes of an event. Exactly one of its fields is set.
type Filter struct {
	// All, Any and Not combine other filters.
	All, Any []Filter
	Not      *Filter
	// Exact, Prefix and Suffix map attribute names to the values that the attributes must equal, begin or end with.
	Exact, Prefix, Suffix map[string]string
	// CESQL is an expression in the CloudEvents SQL dialect.
	CESQL string
}

// Endpoint is a destination.
type Endpoint struct {
	// URL is absolute, its scheme http or https. Empty stands for no destination, unless Unresolved is true.
	URL string
	// Unresolved is true if the destination exists, but its address is currently unknown. URL is empty then.
	Unresolved bool
	// CACerts are PEM certificates of authorities to trust in addition to the system's, or empty.
	CACerts string
	// Audience is the audience of the tokens that authenticate deliveries to the endpoint. Empty sends no token.
	Audience string
}

// BackoffPolicy is the growth of the delay between attempts.
type BackoffPolicy string

// BackoffLinear waits for the same delay before each retry, BackoffExponential doubles it.
const (
	BackoffLinear      BackoffPolicy = "linear"
	BackoffExponential BackoffPolicy = "exponential"
)

// Format is the mode in which an event is sent.
type Format string

// FormatJSON is structured mode in JSON, FormatBinary is binary mode.
const (
	FormatJSON   Format = "json"
	FormatBinary Format = "binary"
)

// Delivery are the options for sending events. The zero value disables retries.
type Delivery struct {
	// Retry is the number of retries after the first attempt.
	Retry int
	// Policy is the growth of the delay between attempts.
	Policy BackoffPolicy
	// Backoff is the delay before the first retry.
	Backoff time.Duration
	// MaxBackoff bounds the delay of exponential backoff; 0 means no bound.
	MaxBackoff time.Duration
	// Timeout bounds one attempt; 0 means the default.
	Timeout time.Duration
	// RetryAfterMax bounds the delay that a Retry-After header requests; nil means no bound, 0 ignores such headers.
	RetryAfterMax *time.Duration
	// Format is the mode of sent events; empty keeps the one in which an event arrived.
	Format Format
}

// Health is the state of the deliveries to a consumer.
type Health struct {
	// Failing is true if the latest attempts failed.
	Failing bool
	// Since is the time of the first of these failures; zero if Failing is false.
	Since time.Time
	// LastError is the error of the latest failed attempt, in a form that follows the consumer's name, such as
	// "POST http://localhost:9000/: 503 Service Unavailable".
	LastError string
}

// Archive configures the archive of the accepted events of a Broker. Immutable.
type Archive struct {
	// Retention is the age at which events are deleted from the archive, more than 0.
	Retention time.Duration
	// MaxBytes bounds the size of the archive; 0 means the limit of the namespace.
	MaxBytes int64
}

// Package eventing holds the immutable values that controllers hand to the broker (which streams of events there
// are, and who consumes them) and what it tells them of deliveries.
package eventing

import (
	"time"

	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
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

// Key names an object of Eventing. Its text form is for logs.
type Key struct {
	Kind            Kind
	Namespace, Name string
}

// String returns kind, namespace and name, such as "Broker default/orders".
func (k Key) String() string { return string(k.Kind) + " " + k.Namespace + "/" + k.Name }

// Stream is a Broker or a Channel: what accepts events and keeps them until all its consumers have them. Immutable
// once handed over.
type Stream struct {
	Key Key
	// UID is the original UID of the object. It distinguishes the stream from an earlier one of the same name, whose events it does
	// not inherit.
	UID types.UID
	// Memory keeps the events in memory instead of on disk: they do not survive a restart.
	Memory bool
}

// Consumer is a Trigger or a Subscription: what gets the events of a stream that pass its filters. Immutable once
// handed over.
type Consumer struct {
	Key Key
	// UID is the original UID of the object. It distinguishes the consumer from an earlier one of the same name, whose undelivered
	// events it does not inherit.
	UID types.UID
	// Stream and StreamUID are those of the consumer's stream.
	Stream    Key
	StreamUID types.UID

	// Attributes is the exact filter of a Trigger, in force where there are no Filters. Nil passes every event.
	Attributes map[string]string
	// Filters are those of a Trigger; an event must pass all.
	Filters []eventingv1.SubscriptionsAPIFilter

	// Subscriber is where events are sent. Without one they go to Reply, whose answers are no replies. While Subscriber or
	// Reply is unresolved, events that pass the filters are kept, and no attempt is made.
	Subscriber Endpoint
	// Reply is where the subscriber's replies go; without a URL they are dropped. Replies to a Trigger go to its
	// stream whatever Reply says.
	Reply Endpoint
	// DeadLetter is where events go that cannot be delivered; without one they are dropped. While it is unresolved, they
	// are kept.
	DeadLetter Endpoint
	Delivery   Delivery
	// Ordered has events delivered one at a time in the order of their acceptance; one that is retried holds up
	// those behind it.
	Ordered bool
}

// Endpoint is a destination.
type Endpoint struct {
	// URL is absolute, its scheme http or https. Empty stands for no destination, unless Unresolved is true.
	URL string
	// Unresolved is true if there is a destination whose address is unknown for now. URL is empty then.
	Unresolved bool
	// CACerts are PEM certificates of authorities to trust besides those of the system, or empty.
	CACerts string
}

// Delivery says how events are sent. Its zero value stands for no retries.
type Delivery struct {
	// Retry is the number of retries after the first attempt.
	Retry int
	// Policy is linear or exponential.
	Policy duckv1.BackoffPolicyType
	// Backoff is the delay before the first retry.
	Backoff time.Duration
	// MaxBackoff bounds the delay of exponential backoff; 0 means no bound.
	MaxBackoff time.Duration
	// Timeout bounds one attempt; 0 means the system's.
	Timeout time.Duration
	// RetryAfterMax bounds the delay that a Retry-After header asks for; nil means no bound, 0 that such headers
	// are ignored.
	RetryAfterMax *time.Duration
	// Format is that of sent events; empty stands for the one an event arrived in.
	Format duckv1.FormatType
}

// Health is what the broker knows of the deliveries to a consumer.
type Health struct {
	// Failing tells that the latest attempts failed.
	Failing bool
	// Since is when they began to; zero if they do not.
	Since time.Time
	// LastError is the error of the latest attempt that failed, worded to follow the consumer's name, such as
	// "POST http://localhost:9000/: 503 Service Unavailable".
	LastError string
}

package controllers

import (
	"context"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Streams is the part of the data plane that keeps events.
type Streams interface {
	// SetStream makes a stream, unless it is there. Events are accepted when it has returned nil.
	SetStream(ctx context.Context, stream eventing.Stream) error
	// RemoveStream deletes a stream with its events, if there is one.
	RemoveStream(ctx context.Context, key eventing.Key) error
}

// Consumers is the part of the data plane that delivers events.
type Consumers interface {
	// SetConsumer returns nil once every event accepted from then on reaches the consumer.
	SetConsumer(ctx context.Context, consumer eventing.Consumer) error
	// RemoveConsumer ends the deliveries to a consumer, if there is one.
	RemoveConsumer(ctx context.Context, key eventing.Key) error
	// Health returns what is known of the deliveries to a consumer; the zero value if there is none.
	Health(key eventing.Key) eventing.Health
}

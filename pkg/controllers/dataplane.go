package controllers

import (
	"context"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Streams is the part of the data plane that keeps events.
type Streams = eventing.Streams

// Consumers is the part of the data plane that delivers events.
type Consumers interface {
	// SetConsumer returns nil once every event accepted from then on reaches the consumer.
	SetConsumer(ctx context.Context, consumer eventing.Consumer) error
	// RemoveConsumer ends the deliveries to a consumer, if there is one.
	RemoveConsumer(ctx context.Context, key eventing.Key) error
	// Health returns what is known of the deliveries to a consumer; the zero value if there is none.
	Health(key eventing.Key) eventing.Health
}

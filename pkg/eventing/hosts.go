package eventing

import (
	"context"
	"crypto/md5" //nolint:gosec // Knative's releases shorten names with it; nothing depends on its strength.
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/util/validation"
)

// ChannelHostSuffix ends the first label of the host name of a Channel, which is the name of its core Service.
const ChannelHostSuffix = "-kn-channel"

// shortPrefix is the number of bytes of a long Channel name that its host name begins with. 32 digits of its hash follow.
const shortPrefix = validation.DNS1123LabelMaxLength - len(ChannelHostSuffix) - 2*md5.Size

// ChannelHost returns the first label of the host name of a Channel. Names that leave no room for the suffix are shortened
// with a hash, as Knative's releases do.
func ChannelHost(name string) string {
	if len(name)+len(ChannelHostSuffix) > validation.DNS1123LabelMaxLength {
		name = shortened(name)
	}
	return name + ChannelHostSuffix
}

func shortened(name string) string {
	return fmt.Sprintf("%s%x", name[:shortPrefix], md5.Sum([]byte(name))) //nolint:gosec // see above
}

// Streams is the part of the data plane that keeps events.
type Streams interface {
	// SetStream creates a stream, unless it exists. Events are accepted when it has returned nil.
	SetStream(ctx context.Context, spec Stream) error
	// RemoveStream deletes a stream with its events, if it exists.
	RemoveStream(ctx context.Context, key Key) error
}

// Consumers is the part of the data plane that delivers events.
type Consumers interface {
	// SetConsumer returns nil once every event accepted from then on reaches the consumer.
	SetConsumer(ctx context.Context, consumer Consumer) error
	// RemoveConsumer ends the deliveries to a consumer, if it exists.
	RemoveConsumer(ctx context.Context, key Key) error
	// Health returns the health of the deliveries to a consumer, or the zero value if it does not exist.
	Health(key Key) Health
}

// ChannelHosts forwards changes of streams, and finds Channels by their shortened host names. It is safe for concurrent use.
type ChannelHosts struct {
	Streams
	// names maps the key with a shortened name to the key of the Channel.
	names sync.Map
}

// SetStream forwards to Streams and records the shortened name.
func (h *ChannelHosts) SetStream(ctx context.Context, spec Stream) error {
	if short, isShort := shortKey(spec.Key); isShort {
		h.names.LoadOrStore(short, spec.Key)
	}
	return h.Streams.SetStream(ctx, spec)
}

// RemoveStream forwards to Streams and removes the shortened name.
func (h *ChannelHosts) RemoveStream(ctx context.Context, key Key) error {
	if err := h.Streams.RemoveStream(ctx, key); err != nil {
		return err
	}
	if short, isShort := shortKey(key); isShort {
		h.names.CompareAndDelete(short, key)
	}
	return nil
}

// Find returns the Channel whose shortened name is in a key.
func (h *ChannelHosts) Find(short Key) (key Key, found bool) {
	if value, ok := h.names.Load(short); ok {
		return value.(Key), true
	}
	return Key{}, false
}

// shortKey returns the key with the shortened name of a Channel, if its host name has one.
func shortKey(key Key) (short Key, isShort bool) {
	if key.Kind != Channel || len(key.Name)+len(ChannelHostSuffix) <= validation.DNS1123LabelMaxLength {
		return key, false
	}
	short = key
	short.Name = shortened(key.Name)
	return short, true
}

// Package streams spreads the streams of Eventing over the replicas: the owner of a stream accepts its events and delivers
// them. All replicas know all streams and consumers, so that each can become the owner.
//
// When the membership changes, the former owner of a stream accepts no more events for it, ends its deliveries and keeps the remaining
// events in the event log. The new owner sets all consumers, including consumers that its informers do not know yet, and reads the log
// as after a restart. While two replicas both consider themselves the owner, both accept events and share the deliveries: an event may
// be delivered twice then, but none is lost, because both use the same log.
package streams

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

// patience is the time that an event waits for the handover of its stream.
const patience = 2 * time.Second

// Broker serves the streams of this replica. RemoveStream and RemoveConsumer are also called for objects of streams that it does not
// serve: it may have counters of them. See broker.Broker.
type Broker interface {
	AcquireStream(ctx context.Context, spec eventing.Stream, consumers []eventing.Consumer) (served bool, err error)
	ReleaseStream(key eventing.Key)
	RemoveStream(ctx context.Context, key eventing.Key) error
	Refresh(ctx context.Context, key eventing.Key) error
	SetConsumer(ctx context.Context, config eventing.Consumer) error
	RemoveConsumer(ctx context.Context, key eventing.Key) error
	Health(key eventing.Key) eventing.Health
	Accept(ctx context.Context, key eventing.Key, events []*event.Event) error
	AddAddress(key eventing.Key)
	RemoveAddress(key eventing.Key)
	Start(ctx context.Context) error
	Prune(ctx context.Context) error
	Stop(timeout time.Duration)
}

// Options configure a Manager.
type Options struct {
	Broker Broker
	// Owners are the owners of all streams.
	Owners *ownership.Table[eventing.Key]
	// Subscribed lists the consumers whose status says that they are subscribed. It sets only Key, UID and Stream of each. A replica
	// that gains a stream rejects its events until all of these have been set here, because informers may lag behind the former
	// owner's. Nil disables the check.
	Subscribed func(ctx context.Context) ([]eventing.Consumer, error)
	// Peers sends requests to other replicas; nil if this is the only one.
	Peers http.RoundTripper
	// Gained is called at the start and after each change of membership, with a function that reports whether this replica gained a
	// stream. It is optional.
	Gained func(which func(stream eventing.Key) bool)
}

// Manager serves the streams that this replica owns, and tracks all others. Its methods may be called concurrently, but not two at a
// time for the same object.
type Manager struct {
	options       Options
	catalog       catalog
	subscriptions subscriptions
	handover      *ownership.Handover[eventing.Key]

	// Canceling ctx ends the calls of the broker that no caller waits for.
	ctx    context.Context
	cancel context.CancelFunc
	// stopping is closed to stop the goroutines that running counts.
	stopping chan struct{}
	running  sync.WaitGroup
}

// New returns a Manager that hands streams over from Start to Stop. ctx carries its logger.
func New(ctx context.Context, options Options) *Manager {
	m := &Manager{
		options:       options,
		catalog:       catalog{consumers: map[eventing.Key]eventing.Key{}},
		subscriptions: subscriptions{list: options.Subscribed},
		handover:      ownership.NewHandover(ctx, options.Owners, options.Peers, handoverPath),
		stopping:      make(chan struct{}),
	}
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(ctx))
	return m
}

// Exists reports whether a stream exists, regardless of its owner.
func (m *Manager) Exists(stream eventing.Key) bool {
	st := m.catalog.find(stream)
	return st != nil && st.exists.Load()
}

// SetStream adds or changes a stream, and serves it if this replica owns it.
func (m *Manager) SetStream(ctx context.Context, spec eventing.Stream) error {
	st := m.catalog.lock(spec.Key)
	defer st.mu.Unlock()
	if st.spec != nil && st.spec.UID != spec.UID {
		if err := m.remove(ctx, st); err != nil {
			return err
		}
	}
	st.spec = &spec
	st.exists.Store(true)
	m.options.Broker.AddAddress(spec.Key)
	return ignoreBehind(m.acquire(ctx, st))
}

// RemoveStream removes a stream, and deletes its events if this replica owns it. Broker.Prune deletes the events of a stream that is
// removed while it has no owner.
func (m *Manager) RemoveStream(ctx context.Context, key eventing.Key) error {
	st := m.catalog.lock(key)
	defer st.mu.Unlock()
	if err := m.remove(ctx, st); err != nil {
		return err
	}
	m.catalog.forget(st)
	return nil
}

// remove removes a stream whose mu is held.
func (m *Manager) remove(ctx context.Context, st *stream) error {
	st.exists.Store(false)
	st.gate.set(false)
	if err := m.options.Broker.RemoveStream(ctx, st.key); err != nil {
		return err
	}
	st.served = false
	if st.spec != nil {
		m.options.Broker.RemoveAddress(st.key)
		st.spec = nil
	}
	return nil
}

// SetConsumer adds or changes a consumer, and delivers events to it if this replica owns its stream.
func (m *Manager) SetConsumer(ctx context.Context, config eventing.Consumer) error {
	if before, found := m.catalog.streamOf(config.Key); found && before != config.Stream {
		if err := m.RemoveConsumer(ctx, config.Key); err != nil {
			return err
		}
	}
	st := m.catalog.lock(config.Stream)
	defer st.mu.Unlock()
	m.catalog.setConsumer(st, config)
	if !st.served {
		if !m.options.Owners.Owns(config.Stream) {
			return nil
		}
		if err := m.acquire(ctx, st); err != nil {
			return ignoreBehind(err)
		}
	}
	return m.options.Broker.SetConsumer(ctx, config)
}

// RemoveConsumer removes a consumer, and drops its deliveries if this replica owns its stream.
func (m *Manager) RemoveConsumer(ctx context.Context, key eventing.Key) error {
	stream, found := m.catalog.streamOf(key)
	if !found {
		return nil
	}
	st := m.catalog.lock(stream)
	defer st.mu.Unlock()
	if err := m.options.Broker.RemoveConsumer(ctx, key); err != nil {
		return err
	}
	m.catalog.removeConsumer(st, key)
	m.catalog.forget(st)
	return nil
}

// Consumers returns the consumers of a stream, in no particular order, whichever replica owns it.
func (m *Manager) Consumers(stream eventing.Key) []eventing.Consumer {
	st := m.catalog.find(stream)
	if st == nil {
		return nil
	}
	st.mu.Lock()
	defer st.mu.Unlock()
	return slices.Collect(maps.Values(st.consumers))
}

// Health returns the health of the deliveries to a consumer, which is empty if another replica owns its stream.
func (m *Manager) Health(consumer eventing.Key) eventing.Health {
	return m.options.Broker.Health(consumer)
}

// Accept makes events durable for a stream that this replica owns. It waits for a moment while the stream is handed over. It
// fails with eventing.ErrNotOwner if another replica owns the stream, and otherwise as broker.Broker does.
func (m *Manager) Accept(ctx context.Context, stream eventing.Key, events []*event.Event) error {
	var timeout *time.Timer
	for {
		changed := m.options.Owners.Changed()
		st := m.catalog.find(stream)
		if st == nil || !st.exists.Load() {
			return eventing.Reject(eventing.ErrNotFound, "%s does not exist", stream)
		}
		passed, opened, err := st.gate.pass(func() error { return m.options.Broker.Accept(ctx, stream, events) })
		if passed {
			return err
		}
		if !m.options.Owners.Owns(stream) {
			return eventing.ErrNotOwner
		}
		if timeout == nil {
			timeout = time.NewTimer(patience)
			defer timeout.Stop()
		}
		select {
		case <-opened:
		case <-changed:
		case <-timeout.C:
			return eventing.Reject(eventing.ErrNotReady, "%s is not ready to take events yet", stream)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Start starts deliveries and handovers. Call it once all existing streams and consumers have been set, as far as that is possible, and
// this replica is a member.
func (m *Manager) Start(ctx context.Context) error {
	owners := m.options.Owners.Current()
	if m.options.Gained != nil {
		// The objects were reconciled before this replica was a member.
		m.options.Gained(owners.Owns)
	}
	moved := m.reassign()
	err := m.options.Broker.Start(ctx)
	if err != nil && m.options.Peers == nil {
		return err
	}
	if err != nil {
		// The event log may need other replicas that start later.
		klog.FromContext(ctx).Info("Deleting the events of removed objects later", "reason", err.Error())
		m.recheck(nil)
	}
	m.running.Go(func() { m.options.Owners.Follow(owners, moved, m.stopping, m.move) })
	return nil
}

// Stop releases the streams that other replicas own by now: all of them once this replica has left the membership. Afterwards it
// ends the deliveries as broker.Broker does.
func (m *Manager) Stop(timeout time.Duration) {
	close(m.stopping)
	m.running.Wait()
	m.reassign()
	m.handover.Close()
	m.cancel()
	m.options.Broker.Stop(timeout)
}

// errNotReady returns the error of a consumer whose stream does not exist yet.
func errNotReady(stream eventing.Key) error {
	return fmt.Errorf("%s is not ready to have consumers", stream)
}

// Package streams spreads the streams of Eventing over the replicas: the owner of a stream accepts its events and delivers
// them. All replicas know all streams and consumers, so that each can become the owner.
//
// When the membership changes, the former owner of a stream accepts no more events for it, ends its deliveries and keeps the remaining
// events in the event log. The new owner sets all consumers, including consumers that its informers do not know yet, and reads the log
// as after a restart. While two replicas both consider themselves the owner, both accept events and share the deliveries: an event may
// be delivered twice then, but none is lost, because both use the same log.
//
// A stream with several partitions is served as one stream for each, with all its consumers. A replica accepts events in its own
// partitions. Events with the same partition key have the same partition, whose owner accepts them.
package streams

import (
	"context"
	"errors"
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
	// RemoveConsumer removes a consumer of one partition, which the key has.
	RemoveConsumer(ctx context.Context, key eventing.Key) error
	Health(key eventing.Key) eventing.Health
	Accept(ctx context.Context, key eventing.Key, events []*event.Event) error
	AddAddress(key eventing.Key)
	RemoveAddress(key eventing.Key)
	Start(ctx context.Context) error
	Prune(ctx context.Context) error
	Stop(timeout time.Duration)
}

// Place determines the owner of a partition: successive partitions of a stream have different owners.
func Place(partition eventing.Key) ownership.Place {
	return ownership.Place{Name: partition.Whole().String(), Rank: partition.Partition}
}

// Options configure a Manager.
type Options struct {
	Broker Broker
	// Owners are the owners of all partitions, by Place.
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

// SetStream adds or changes a stream, and serves the partitions that this replica owns.
func (m *Manager) SetStream(ctx context.Context, spec eventing.Stream) error {
	first := m.catalog.lock(spec.Key)
	defer first.mu.Unlock()
	if first.spec != nil && first.spec.UID != spec.UID {
		if err := m.removeAll(ctx, first); err != nil {
			return err
		}
	}
	err := m.setPartition(ctx, first, spec)
	for n := 1; n < first.count(); n++ {
		st := m.catalog.lock(spec.Key.Part(n))
		if st.spec == nil {
			for _, config := range first.consumers {
				m.catalog.setConsumer(st, config)
			}
		}
		err = errors.Join(err, m.setPartition(ctx, st, spec))
		st.mu.Unlock()
	}
	if err == nil {
		// Events are not accepted in a partition that could not be set.
		first.partitions.Store(int32(first.count()))
	}
	return err
}

// setPartition sets a partition whose mu is held.
func (m *Manager) setPartition(ctx context.Context, st *stream, spec eventing.Stream) error {
	if spec.Key = st.key; st.spec == nil {
		st.since = time.Now()
	}
	st.spec = &spec
	st.exists.Store(true)
	m.options.Broker.AddAddress(spec.Key.Whole())
	return ignoreBehind(m.acquire(ctx, st))
}

// RemoveStream removes a stream, and deletes the events of the partitions that this replica owns. Broker.Prune deletes the events of a
// stream that is removed while it has no owner.
func (m *Manager) RemoveStream(ctx context.Context, key eventing.Key) error {
	first := m.catalog.lock(key)
	defer first.mu.Unlock()
	if err := m.removeAll(ctx, first); err != nil {
		return err
	}
	m.catalog.forget(first)
	return nil
}

// removeAll removes the partitions of a stream. The mu of the first one is held.
func (m *Manager) removeAll(ctx context.Context, first *stream) error {
	for n := 1; n < first.count(); n++ {
		if err := m.removeOne(ctx, first.key.Part(n)); err != nil {
			return err
		}
	}
	if err := m.remove(ctx, first); err != nil {
		return err
	}
	first.partitions.Store(0)
	return nil
}

// removeOne removes a partition after the first one.
func (m *Manager) removeOne(ctx context.Context, key eventing.Key) error {
	st := m.catalog.lock(key)
	defer st.mu.Unlock()
	if err := m.remove(ctx, st); err != nil {
		return err
	}
	clear(st.consumers)
	m.catalog.forget(st)
	return nil
}

// remove removes a partition whose mu is held.
func (m *Manager) remove(ctx context.Context, st *stream) error {
	st.exists.Store(false)
	st.gate.set(false)
	if err := m.options.Broker.RemoveStream(ctx, st.key); err != nil {
		return err
	}
	st.served = false
	if st.spec != nil {
		m.options.Broker.RemoveAddress(st.key.Whole())
		st.spec = nil
	}
	return nil
}

// SetConsumer adds or changes a consumer, and delivers events to it from the partitions that this replica owns. If it owns the first one, the
// owners of the others have set the consumer too when SetConsumer has returned.
func (m *Manager) SetConsumer(ctx context.Context, config eventing.Consumer) error {
	if err := m.setConsumers(ctx, config); err != nil {
		return err
	}
	return m.confirm(ctx, &config)
}

// setConsumers sets a consumer of all partitions here.
func (m *Manager) setConsumers(ctx context.Context, config eventing.Consumer) error {
	if before, found := m.catalog.streamOf(config.Key); found && before != config.Stream {
		if err := m.RemoveConsumer(ctx, config.Key); err != nil {
			return err
		}
	}
	first := m.catalog.lock(config.Stream)
	defer first.mu.Unlock()
	err := m.setConsumer(ctx, first, config)
	for n := 1; n < first.count(); n++ {
		st := m.catalog.lock(config.Stream.Part(n))
		if n < int(first.partitions.Load()) || st.served {
			err = errors.Join(err, m.setConsumer(ctx, st, config))
		} else {
			// SetStream is repeated until the partition can be set.
			m.catalog.setConsumer(st, config)
		}
		st.mu.Unlock()
	}
	return err
}

// setConsumer sets a consumer of a partition whose mu is held.
func (m *Manager) setConsumer(ctx context.Context, st *stream, config eventing.Consumer) error {
	config.Stream = st.key
	m.catalog.setConsumer(st, config)
	if !st.served {
		if !m.options.Owners.Owns(st.key) {
			return nil
		}
		if err := m.acquire(ctx, st); err != nil {
			return ignoreBehind(err)
		}
	}
	return m.options.Broker.SetConsumer(ctx, config)
}

// RemoveConsumer removes a consumer, and drops its deliveries from the partitions that this replica owns.
func (m *Manager) RemoveConsumer(ctx context.Context, key eventing.Key) error {
	stream, found := m.catalog.streamOf(key)
	if !found {
		return nil
	}
	first := m.catalog.lock(stream)
	defer first.mu.Unlock()
	for n := 1; n < first.count(); n++ {
		st := m.catalog.lock(stream.Part(n))
		err := m.removeConsumer(ctx, st, key)
		st.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return m.removeConsumer(ctx, first, key)
}

// removeConsumer removes a consumer of a partition whose mu is held.
func (m *Manager) removeConsumer(ctx context.Context, st *stream, key eventing.Key) error {
	if err := m.options.Broker.RemoveConsumer(ctx, key.Part(st.key.Partition)); err != nil {
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

// Partitions returns the number of partitions of a stream, which is 0 if it does not exist.
func (m *Manager) Partitions(stream eventing.Key) int {
	if first := m.catalog.find(stream); first != nil {
		return int(first.partitions.Load())
	}
	return 0
}

// Route returns a partition of a stream whose owner accepts a request, and whether this replica owns it: one of its own if there is any, and
// otherwise each of them in turn.
func (m *Manager) Route(key eventing.Key) (partition eventing.Key, self bool) {
	first := m.catalog.find(key)
	if first == nil {
		return key, m.options.Owners.Owns(key)
	}
	return m.share(first).route(first)
}

// share returns the share of this replica in a stream.
func (m *Manager) share(first *stream) *share {
	owners, partitions := m.options.Owners.Current(), max(1, int(first.partitions.Load()))
	if s := first.share.Load(); s != nil && s.partitions == partitions && s.owners.Equal(owners) {
		return s
	}
	s := &share{owners: owners, partitions: partitions}
	for n := range partitions {
		if partition := first.key.Part(n); owners.Owns(partition) {
			s.own = append(s.own, partition)
		}
	}
	first.share.Store(s)
	return s
}

// Accept makes events durable in a partition of a stream that this replica owns. It waits for a moment while the partition is handed over. It
// fails with an eventing.OtherOwner if another replica owns the partition, and otherwise as broker.Broker does.
func (m *Manager) Accept(ctx context.Context, stream eventing.Key, events []*event.Event) error {
	var timeout *time.Timer
	for {
		changed := m.options.Owners.Changed()
		first := m.catalog.find(stream)
		if first == nil || !first.exists.Load() {
			return eventing.Reject(eventing.ErrNotFound, "%s does not exist", stream)
		}
		partition, self := m.share(first).of(first, events)
		st := m.catalog.find(partition)
		var opened <-chan struct{}
		if st != nil {
			passed, later, err := st.gate.pass(func() error { return m.options.Broker.Accept(ctx, partition, events) })
			if passed {
				return err
			}
			opened = later
		}
		if !self {
			return eventing.OtherOwner{Partition: partition}
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

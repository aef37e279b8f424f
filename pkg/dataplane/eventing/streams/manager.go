// Package streams spreads Eventing over the replicas of this server: each stream belongs to one of them, which takes its
// events and delivers them. All replicas know all streams and consumers, so that each can go on with what another had.
//
// When the members change, who loses a stream takes no more events for it, ends its deliveries and gives back to the log
// what is not delivered; who gains it sets all its consumers, those too that its informers are late to bring, and takes up
// the log as after a restart. For as long as two replicas both believe to own a stream, both take its events and share what
// there is to deliver: an event may be delivered twice then, and none is lost, as the log is one.
package streams

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// patience is how long an event waits for a stream that changes hands.
const patience = 2 * time.Second

// Broker serves the streams that belong to this replica. See broker.Broker.
type Broker interface {
	TakeStream(ctx context.Context, spec eventing.Stream, consumers []eventing.Consumer) (taken bool, err error)
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

// Options are what Shards stand on.
type Options struct {
	Broker Broker
	// Members are the replicas that there are.
	Members *membership.View
	// Subscribed lists the consumers whose status says that they are subscribed. It sets only Key, UID and Stream of each. A
	// replica that gains a stream rejects its events until all of these have been set here, because informers may lag behind
	// what the former owner knew. Nil disables the check.
	Subscribed func(ctx context.Context) ([]eventing.Consumer, error)
	// Peers sends requests to other replicas; nil if there are none ever.
	Peers http.RoundTripper
	// Gained is called with what tells whether a stream came to belong to this replica, whenever that may have changed;
	// nil if nobody wants to know.
	Gained func(which func(stream eventing.Key) bool)
	Clock  clock.WithDelayedExecution
}

// Shards are the streams of this replica, and knows those of the others. Methods may be called concurrently, those that
// name an object one at a time for each.
type Shards struct {
	options Options
	ctx     context.Context
	cancel  context.CancelFunc
	// stopping is closed when streams are to change hands no more. following waits for follow, telling for what is told other
	// replicas.
	stopping           chan struct{}
	following, telling sync.WaitGroup
	// turn is sent to when streams may have to change hands.
	turn chan struct{}
	// changed is closed and replaced when the members change.
	changed atomic.Pointer[chan struct{}]
	// shards has a *shard for each stream that was set, or has consumers.
	shards sync.Map

	// mu guards streams: those of the consumers.
	mu      sync.Mutex
	streams map[eventing.Key]eventing.Key

	// listing guards the result of Options.Subscribed by stream, its time, and the members that it was called for.
	listing    sync.Mutex
	subscribed map[eventing.Key][]eventing.Consumer
	listed     time.Time
	members    *membership.Set
}

var _ ingress.Peers = (*Shards)(nil)

// New returns shards that change hands from Start on, and end with Stop. ctx carries their logger.
func New(ctx context.Context, options Options) *Shards {
	s := &Shards{options: options, stopping: make(chan struct{}), turn: make(chan struct{}, 1), streams: map[eventing.Key]eventing.Key{}}
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	changed := make(chan struct{})
	s.changed.Store(&changed)
	options.Members.Subscribe(func(*membership.Set) {
		next := make(chan struct{})
		close(*s.changed.Swap(&next))
		s.settleSoon()
	})
	return s
}

// Owns tells whether a stream belongs to this replica.
func (s *Shards) Owns(stream eventing.Key) bool {
	return s.options.Members.Current().Owns(stream.String())
}

// Exists tells whether there is a stream, here or at another replica.
func (s *Shards) Exists(stream eventing.Key) bool {
	found, ok := s.shards.Load(stream)
	return ok && found.(*shard).known.Load()
}

// SetStream makes a stream if it belongs to this replica, and remembers it otherwise.
func (s *Shards) SetStream(ctx context.Context, spec eventing.Stream) error {
	sh := s.lock(spec.Key)
	defer sh.changing.Unlock()
	if sh.spec != nil && sh.spec.UID != spec.UID {
		if err := s.remove(ctx, sh); err != nil {
			return err
		}
	}
	sh.spec = &spec
	sh.known.Store(true)
	s.options.Broker.AddAddress(spec.Key)
	return ignoreBehind(s.take(ctx, sh))
}

// RemoveStream forgets a stream, and deletes it with all its events if it belongs to this replica. What is deleted while it
// belongs to nobody, Prune finds.
func (s *Shards) RemoveStream(ctx context.Context, key eventing.Key) error {
	sh := s.lock(key)
	defer sh.changing.Unlock()
	if err := s.remove(ctx, sh); err != nil {
		return err
	}
	s.forget(sh)
	return nil
}

// SetConsumer makes a consumer, or changes it, if its stream belongs to this replica, and remembers it otherwise.
func (s *Shards) SetConsumer(ctx context.Context, config eventing.Consumer) error {
	if before, found := s.streamOf(config.Key); found && before != config.Stream {
		if err := s.RemoveConsumer(ctx, config.Key); err != nil {
			return err
		}
	}
	sh := s.lock(config.Stream)
	defer sh.changing.Unlock()
	sh.consumers[config.Key] = config
	s.mu.Lock()
	s.streams[config.Key] = config.Stream
	s.mu.Unlock()
	if !sh.taken {
		if !s.Owns(config.Stream) {
			return nil
		}
		if err := s.take(ctx, sh); err != nil {
			return ignoreBehind(err)
		}
	}
	return s.options.Broker.SetConsumer(ctx, config)
}

// RemoveConsumer forgets a consumer, and deletes what it has not got if its stream belongs to this replica.
func (s *Shards) RemoveConsumer(ctx context.Context, key eventing.Key) error {
	stream, found := s.streamOf(key)
	if !found {
		return nil
	}
	sh := s.lock(stream)
	defer sh.changing.Unlock()
	if sh.taken {
		if err := s.options.Broker.RemoveConsumer(ctx, key); err != nil {
			return err
		}
	}
	delete(sh.consumers, key)
	s.mu.Lock()
	delete(s.streams, key)
	s.mu.Unlock()
	s.forget(sh)
	return nil
}

func (s *Shards) streamOf(consumer eventing.Key) (eventing.Key, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream, found := s.streams[consumer]
	return stream, found
}

// Health returns what is known of the deliveries to a consumer, which is nothing where its stream is another's.
func (s *Shards) Health(consumer eventing.Key) eventing.Health {
	return s.options.Broker.Health(consumer)
}

// Accept makes events durable for a stream that belongs to this replica; while that changes, it waits for a moment. It
// fails with ingress.ErrNotOwner where the stream is another's, and otherwise as broker.Broker does.
func (s *Shards) Accept(ctx context.Context, stream eventing.Key, events []*event.Event) error {
	var timeout clock.Timer
	for {
		changed := *s.changed.Load()
		found, ok := s.shards.Load(stream)
		if !ok || !found.(*shard).known.Load() {
			return eventing.Reject(eventing.ErrNotFound, "there is no %s", stream)
		}
		done, ready, err := found.(*shard).accept(func() error { return s.options.Broker.Accept(ctx, stream, events) })
		if done {
			return err
		}
		if !s.Owns(stream) {
			return ingress.ErrNotOwner
		}
		if timeout == nil {
			timeout = s.options.Clock.NewTimer(patience)
			defer timeout.Stop()
		}
		select {
		case <-ready:
		case <-changed:
		case <-timeout.C():
			return eventing.Reject(eventing.ErrNotReady, "%s is not ready to take events yet", stream)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Start begins to deliver, and to have streams change hands. It is to be called once all streams and consumers that there
// are have been set, as far as that is possible, and this replica is a member.
func (s *Shards) Start(ctx context.Context) error {
	before := s.settle(nil) //nolint:contextcheck // what it tells others goes on after the call
	err := s.options.Broker.Start(ctx)
	if err != nil && s.options.Peers == nil {
		return err
	}
	if err != nil {
		// Other replicas may have to come up first.
		klog.FromContext(ctx).Info("What the event log has of objects that are gone is deleted later", "reason", err.Error())
		s.lookAgain(nil)
	}
	s.following.Go(func() { s.follow(before) }) //nolint:contextcheck // it ends with Stop
	s.following.Go(s.watch)
	return nil
}

// Stop leaves what belongs to other replicas by now, which is everything if this one is no member any more. It has no
// streams change hands after that, and ends deliveries as broker.Broker does.
func (s *Shards) Stop(timeout time.Duration) {
	close(s.stopping)
	s.following.Wait()
	s.settle(nil)
	timer := s.options.Clock.AfterFunc(handoverTimeout, s.cancel)
	s.telling.Wait()
	timer.Stop()
	s.cancel()
	s.options.Broker.Stop(timeout)
}

// errBehind is returned for a stream of this replica while its informers lack a consumer.
var errBehind = errors.New("informers lag behind: unknown consumer")

// ignoreBehind returns nil for errBehind, and err otherwise. The missing consumer, or settle, tries again.
func ignoreBehind(err error) error {
	if errors.Is(err, errBehind) {
		return nil
	}
	return err
}

// errNotReady says that a consumer's stream is not there yet.
func errNotReady(stream eventing.Key) error {
	return fmt.Errorf("%s is not ready to have consumers", stream)
}

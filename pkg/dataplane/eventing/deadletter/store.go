package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/semaphore"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/retention"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

const (
	// DefaultRetention keeps dead letters for a week: an incident of a weekend is looked at on the days after it.
	DefaultRetention = 7 * 24 * time.Hour
	// DefaultMaxBytes bounds the dead letters of a namespace.
	DefaultMaxBytes = 128 << 20

	// maxAdding bounds the bytes of dead letters that are added at the same time: until they are durable, several copies of each are in memory.
	maxAdding = 8 << 20
	// idPrefix precedes the namespace in the ID of its retained stream.
	idPrefix = "dead-letters-"
	// totalParts is the divisor of the limit of the event log that yields the limit of all dead letters.
	totalParts = 8
)

// ErrNotFound is returned for a dead letter that does not exist.
var ErrNotFound = eventlog.ErrNotFound

// Options configure a Store. All fields are required unless they say otherwise.
type Options struct {
	Log *eventlog.Log
	// Retention is the age at which dead letters are deleted. MaxBytes bounds the dead letters of each namespace.
	Retention time.Duration
	MaxBytes  int64
	// MaxTotalBytes bounds all dead letters. 0 selects an eighth of the limit of the event log, at least MaxBytes.
	MaxTotalBytes int64
	// Gone returns the consumers that do not exist anymore: their dead letters are deleted.
	Gone func(ctx context.Context, consumers []types.UID) (sets.Set[types.UID], error)
	// InUse reports whether a namespace has consumers.
	InUse func(namespace string) bool
	// Evicted is called with the number of dead letters of each consumer that were deleted for lack of space. Others that are deleted
	// at the same time may be included. It must not block.
	Evicted func(namespace string, consumers map[types.UID]uint64)
	Clock   clock.WithTicker
	Logger  logr.Logger
}

// Store has the dead letters of all namespaces. Its methods may be called concurrently, also by other processes.
type Store struct {
	metrics

	options Options
	// adding has the bytes of additions in progress.
	adding *semaphore.Weighted
	// namespaces has a *namespace for each namespace that has had dead letters.
	namespaces sync.Map
	sweeper    retention.Sweeper
	// unused are the namespaces without consumers and dead letters at the last sweep, which Sweep alone uses.
	unused sets.Set[string]
}

// namespace is the part of a Store about one namespace.
type namespace struct {
	name     string
	messages *retention.Stream
	// evicted and expired are the numbers of dead letters that this process deleted because of their size and their age.
	evicted, expired atomic.Int64
}

// NewStore returns a Store.
func NewStore(o Options) *Store {
	if o.MaxTotalBytes == 0 {
		o.MaxTotalBytes = max(o.Log.Limit()/totalParts, o.MaxBytes)
	}
	s := &Store{options: o, adding: semaphore.NewWeighted(maxAdding), unused: sets.New[string]()}
	s.sweeper = retention.Sweeper{Subject: "dead letters", Sweep: s.Sweep, Clock: o.Clock, Logger: o.Logger}
	s.metrics.store = s
	return s
}

// messages returns the stream of a namespace.
func (s *Store) messages(namespace string) (*eventlog.Retained, error) {
	return s.options.Log.Retained(idPrefix + namespace)
}

// namespace returns the namespace with dead letters of a name.
func (s *Store) namespace(name string) (*namespace, error) {
	if found, ok := s.namespaces.Load(name); ok {
		return found.(*namespace), nil
	}
	messages, err := s.messages(name)
	if err != nil {
		return nil, err
	}
	n := &namespace{name: name}
	n.messages = retention.NewStream(messages, func(ctx context.Context, limit, target int64) error { return s.evict(ctx, n, limit, target) })
	found, _ := s.namespaces.LoadOrStore(name, n)
	return found.(*namespace), nil
}

// Add returns nil when a dead letter is durable. It waits for others while many bytes are being added. If its namespace is full, the oldest are evicted. An error wraps an error of the event
// log: eventlog.ErrTooLarge if it can never be stored, eventlog.ErrFull if the disk is full without any dead letters of the namespace.
func (s *Store) Add(ctx context.Context, l *Letter) error {
	adding := int64(min(l.Event.Size(), maxAdding))
	if err := s.adding.Acquire(ctx, adding); err != nil {
		return err
	}
	defer s.adding.Release(adding)
	data, err := l.encode()
	if err != nil {
		return err
	}
	n, err := s.namespace(l.Consumer.Namespace)
	if err != nil {
		return err
	}
	size := int64(len(data) + retention.Overhead)
	full, err := n.messages.Add(ctx, s.options.MaxBytes, size, func(ctx context.Context) error {
		return n.messages.Append(ctx, eventlog.Record{Queue: string(l.ConsumerUID), Data: data})
	})
	if full {
		s.sweeper.Soon()
	}
	if err == nil {
		s.sweeper.Added(size, min(s.options.MaxBytes, s.options.MaxTotalBytes))
	}
	return err
}

// evict deletes the oldest dead letters of a namespace if they have more bytes than a limit, until they have at most so many as target.
func (s *Store) evict(ctx context.Context, n *namespace, limit, target int64) error {
	var before, after map[types.UID]uint64
	purged, err := n.messages.Shrink(ctx, limit, target, func(queues map[string]uint64) {
		after = map[types.UID]uint64{}
		for queue, count := range queues {
			after[types.UID(queue)] = count
		}
		if before == nil {
			before = after
		}
	})
	n.evicted.Add(int64(purged))
	if purged > 0 {
		s.report(n, before, after)
	}
	return err
}

// report reports an eviction by the numbers of dead letters of each consumer before and after it.
func (s *Store) report(n *namespace, before, after map[types.UID]uint64) {
	lost := map[types.UID]uint64{}
	for consumer, count := range before {
		if now := after[consumer]; now < count {
			lost[consumer] = count - now
		}
	}
	if len(lost) > 0 {
		s.options.Logger.Info("Evicted dead letters: the dead letter store is full", "namespace", n.name)
		s.options.Evicted(n.name, lost)
	}
}

// Run sweeps until ctx is canceled.
func (s *Store) Run(ctx context.Context) { s.sweeper.Run(ctx) }

// Sweep deletes dead letters that are too old, whose consumers do not exist anymore, or that exceed the limits.
func (s *Store) Sweep(ctx context.Context) error {
	s.sweeper.Begin()
	states, err := s.options.Log.RetainedStates(ctx, idPrefix)
	if err != nil {
		return err
	}
	unused := sets.New[string]()
	var errs []error
	for i := range states {
		state := &states[i]
		name := strings.TrimPrefix(state.ID, idPrefix)
		n, err := s.namespace(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		n.messages.SetBytes(state.Bytes)
		if state.Messages > 0 {
			errs = append(errs, s.expire(ctx, n, state), s.deleteGone(ctx, n))
		} else if !s.options.InUse(name) {
			unused.Insert(name)
			if s.unused.Has(name) {
				errs = append(errs, n.messages.DeleteStream(ctx))
				s.namespaces.Delete(name)
			}
		}
	}
	s.unused = unused
	return errors.Join(append(errs, s.limit(ctx, states))...)
}

// expire deletes the dead letters of a namespace that are too old.
func (s *Store) expire(ctx context.Context, n *namespace, state *eventlog.RetainedState) error {
	purged, err := n.messages.Expire(ctx, state, s.options.Clock.Now().Add(-s.options.Retention))
	n.expired.Add(int64(purged))
	return err
}

// deleteGone deletes the dead letters of consumers that do not exist anymore.
func (s *Store) deleteGone(ctx context.Context, n *namespace) error {
	state, queues, err := n.messages.State(ctx)
	if err != nil {
		return err
	}
	n.messages.SetBytes(state.Bytes)
	consumers := make([]types.UID, 0, len(queues))
	for queue := range queues {
		consumers = append(consumers, types.UID(queue))
	}
	gone, err := s.options.Gone(ctx, consumers)
	if err != nil {
		return err
	}
	for consumer := range gone {
		if _, err := n.messages.Purge(ctx, string(consumer), 0); err != nil {
			return err
		}
	}
	return nil
}

// limit evicts dead letters until no namespace exceeds its limit, nor all together theirs: the namespaces with most bytes get the same
// lower limit. While the disk is nearly full, all dead letters together lose a quarter in each sweep.
func (s *Store) limit(ctx context.Context, states []eventlog.RetainedState) error {
	held := make([]int64, 0, len(states))
	total := int64(0)
	var all []*namespace
	for i := range states {
		if found, ok := s.namespaces.Load(strings.TrimPrefix(states[i].ID, idPrefix)); ok {
			n := found.(*namespace)
			bytes := n.messages.Bytes()
			all, held, total = append(all, n), append(held, bytes), total+bytes
		}
	}
	s.options.Log.SetRetainedBytes(idPrefix, total)
	s.metrics.bytes.Store(total)
	limit := retention.LimitOf(held, s.options.MaxBytes, s.options.MaxTotalBytes, errors.Is(s.options.Log.SpaceErr(), eventlog.ErrFull))
	var errs []error
	for _, n := range all {
		errs = append(errs, n.messages.Limit(ctx, limit))
	}
	return errors.Join(errs...)
}

// Position is where a namespace's dead letters begin and end.
type Position struct {
	// Since distinguishes the sequences from those of an earlier namespace of the same name.
	Since time.Time
	// First and Last are the first and the last sequence. First is greater than Last without dead letters.
	First, Last uint64
}

// Name returns the name of a dead letter. It has the time at which the namespace got its first one, so that it differs from names of an earlier
// namespace.
func (p Position) Name(sequence uint64) string {
	return strconv.FormatInt(p.Since.Unix(), 36) + "-" + strconv.FormatUint(sequence, 10)
}

// Sequence is the inverse of Name. ok is false for the name of a dead letter of another namespace.
func (p Position) Sequence(name string) (sequence uint64, ok bool) {
	_, number, _ := strings.Cut(name, "-")
	sequence, err := strconv.ParseUint(number, 10, 64)
	return sequence, err == nil && name == p.Name(sequence)
}

// Position returns the Position of a namespace, or ErrNotFound if it has had no dead letters.
func (s *Store) Position(ctx context.Context, namespace string) (Position, error) {
	stream, err := s.messages(namespace)
	if err != nil {
		return Position{}, err
	}
	state, _, err := stream.State(ctx)
	return Position{state.Created, state.First, state.Last}, err
}

// Namespaces returns the names of the namespaces with dead letters, sorted.
func (s *Store) Namespaces(ctx context.Context) ([]string, error) {
	states, err := s.options.Log.RetainedStates(ctx, idPrefix)
	if err != nil {
		return nil, err
	}
	var all []string
	for i := range states {
		if states[i].Messages > 0 {
			all = append(all, strings.TrimPrefix(states[i].ID, idPrefix))
		}
	}
	slices.Sort(all)
	return all, nil
}

// Query selects dead letters of a namespace.
type Query struct {
	Namespace string
	// Consumer selects the dead letters of one consumer. Optional.
	Consumer types.UID
	// From is the first sequence.
	From uint64
	// Count and Bytes bound the result: it has at most Count dead letters, and ends with the one by which it has so many Bytes.
	Count, Bytes int
}

// Read returns dead letters in the order in which they were stored. next is the sequence from which the others follow, 0 without others.
func (s *Store) Read(ctx context.Context, q Query) (letters []Letter, next uint64, err error) {
	stream, err := s.messages(q.Namespace)
	if err != nil {
		return nil, 0, err
	}
	messages, next, err := stream.Read(ctx, string(q.Consumer), q.From, q.Count, q.Bytes)
	if errors.Is(err, ErrNotFound) {
		return nil, 0, nil
	}
	for i := range messages {
		l, err := letterOf(&messages[i])
		if err != nil {
			s.options.Logger.Error(err, "Skipped unreadable dead letter", "namespace", q.Namespace)
			continue
		}
		letters = append(letters, l)
	}
	return letters, next, err
}

// Get returns a dead letter, or ErrNotFound.
func (s *Store) Get(ctx context.Context, namespace string, sequence uint64) (Letter, error) {
	stream, err := s.messages(namespace)
	if err != nil {
		return Letter{}, err
	}
	message, err := stream.Get(ctx, sequence)
	if err != nil {
		return Letter{}, err
	}
	return letterOf(&message)
}

func letterOf(m *eventlog.RetainedMessage) (Letter, error) {
	l := Letter{Sequence: m.Sequence, Stored: m.Time, ConsumerUID: types.UID(m.Queue)}
	if err := l.decode(m.Records[0]); err != nil {
		return Letter{}, fmt.Errorf("dead letter %d: %w", m.Sequence, err)
	}
	return l, nil
}

// Delete deletes a dead letter: it was delivered, or is not needed anymore. It returns ErrNotFound if it does not exist.
func (s *Store) Delete(ctx context.Context, namespace string, sequence uint64) error {
	stream, err := s.messages(namespace)
	if err != nil {
		return err
	}
	return stream.Delete(ctx, sequence)
}

// DeleteAll deletes the dead letters before a sequence of one consumer, or of all if consumer is empty.
func (s *Store) DeleteAll(ctx context.Context, namespace string, consumer types.UID, before uint64) error {
	stream, err := s.messages(namespace)
	if err != nil {
		return err
	}
	_, err = stream.Purge(ctx, string(consumer), before)
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

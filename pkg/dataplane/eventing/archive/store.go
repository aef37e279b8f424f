package archive

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/retention"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// DefaultMaxRetention is the operator's limit of the age of archived events.
	DefaultMaxRetention = 7 * 24 * time.Hour
	// DefaultMaxBytes bounds the archives of a namespace.
	DefaultMaxBytes = 1 << 30

	// idPrefix precedes the namespace and the UID of the Broker in the ID of its retained stream. Neither has a separator.
	idPrefix, separator = "archive_", "_"
	// totalParts is the divisor of the limit of the event log that yields the limit of all archives.
	totalParts = 4
	// disabledDelay is the time after which the archive of a Broker without one is deleted, so that a mistake loses nothing at once.
	disabledDelay = time.Hour
	// openTimeout bounds the wait for the last record before the first append, openPause is the time between attempts.
	openTimeout, openPause = 10 * time.Second, 100 * time.Millisecond
)

// Options configure a Store. All fields are required unless they say otherwise.
type Options struct {
	Log *eventlog.Log
	// MaxRetention bounds the retention time of each archive, MaxBytes the archives of each namespace.
	MaxRetention time.Duration
	MaxBytes     int64
	// MaxTotalBytes bounds all archives. 0 selects a quarter of the limit of the event log, at least MaxBytes.
	MaxTotalBytes int64
	// Gone returns the Brokers that do not exist anymore: their archives are deleted.
	Gone   func(ctx context.Context, brokers []types.UID) (sets.Set[types.UID], error)
	Clock  clock.WithTickerAndDelayedExecution
	Logger logr.Logger
}

// Store has the archives of all Brokers. Its methods may be called concurrently, also by other processes.
type Store struct {
	metrics

	options Options
	sweeper retention.Sweeper
	// archives has an *archive for each UID of a Broker that was set, or has an archive. brokers has the UID of each eventing.Key that was set.
	archives, brokers sync.Map
	// namespaces has a *namespace for each name.
	namespaces sync.Map
}

// namespace has the counters of a namespace.
type namespace struct {
	name string
	// archived and missed are the numbers of accepted events that were archived and that could not be, evicted and expired the numbers of
	// events that this process deleted because of their size and their age.
	archived, missed, evicted, expired atomic.Int64
}

// archive is the archive of one Broker.
type archive struct {
	store     *Store
	namespace *namespace
	broker    types.UID
	stream    *retention.Stream
	// setting is nil until it is known.
	setting atomic.Pointer[setting]
	// failing is true while events cannot be archived.
	failing atomic.Bool
	// used is true if this process appended since the last sweep.
	used atomic.Bool

	// opened is true while next is the number of the next event, opening is held while it is read.
	opened  atomic.Bool
	next    atomic.Uint64
	opening sync.Mutex
}

// setting is whether a Broker has an archive. Immutable.
type setting struct {
	// config is nil without an archive, since is the time from which there was none.
	config *eventing.Archive
	since  time.Time
}

// NewStore returns a Store.
func NewStore(o Options) *Store {
	if o.MaxTotalBytes == 0 {
		o.MaxTotalBytes = max(o.Log.Limit()/totalParts, o.MaxBytes)
	}
	s := &Store{options: o}
	s.sweeper = retention.Sweeper{Subject: "archives", Sweep: s.Sweep, Clock: o.Clock, Logger: o.Logger}
	s.metrics.store = s
	return s
}

func idOf(namespace string, broker types.UID) string {
	return idPrefix + namespace + separator + string(broker)
}

// archive returns the archive of a Broker.
func (s *Store) archive(name string, broker types.UID) (*archive, error) {
	if found, ok := s.archives.Load(broker); ok {
		return found.(*archive), nil
	}
	messages, err := s.options.Log.Retained(idOf(name, broker))
	if err != nil {
		return nil, err
	}
	found, _ := s.namespaces.LoadOrStore(name, &namespace{name: name})
	a := &archive{store: s, namespace: found.(*namespace), broker: broker}
	a.stream = retention.NewStream(messages, a.evict)
	found, _ = s.archives.LoadOrStore(broker, a)
	return found.(*archive), nil
}

// named returns the archive of a Broker, and forgets the one of an earlier Broker of the same name.
func (s *Store) named(broker eventing.Key, uid types.UID) (*archive, error) {
	if before, found := s.brokers.Swap(broker, uid); found && before != uid {
		s.archives.Delete(before)
	}
	return s.archive(broker.Namespace, uid)
}

// Set sets the archive of a Broker by its original UID: events that are accepted after Set has returned are archived. Without a config none are;
// the archive is deleted an hour later.
func (s *Store) Set(broker eventing.Key, uid types.UID, config *eventing.Archive) error {
	a, err := s.named(broker, uid)
	if err != nil {
		return err
	}
	next := &setting{config: config}
	if config == nil {
		next.since = s.options.Clock.Now()
		if before := a.setting.Load(); before != nil && before.config == nil {
			next = before
		}
	}
	a.setting.Store(next)
	return nil
}

// Keep sets the archive of a Broker whose configuration is unknown: as it was, or with the operator's limits if it has an archive from before this
// process started.
func (s *Store) Keep(ctx context.Context, broker eventing.Key, uid types.UID) error {
	a, err := s.named(broker, uid)
	if err != nil || a.setting.Load() != nil {
		return err
	}
	if _, _, err := a.stream.State(ctx); err != nil {
		if errors.Is(err, eventlog.ErrNotFound) {
			return nil
		}
		return err
	}
	return s.Set(broker, uid, &eventing.Archive{Retention: s.options.MaxRetention})
}

// Remove forgets a Broker. Its archive is deleted if it does not exist anymore.
func (s *Store) Remove(broker eventing.Key) {
	if uid, found := s.brokers.LoadAndDelete(broker); found {
		s.archives.Delete(uid)
		s.sweeper.Soon()
	}
}

// active returns the archive of a Broker, or nil if its events are not archived.
func (s *Store) active(broker types.UID) *archive {
	if s == nil {
		return nil
	}
	if found, ok := s.archives.Load(broker); ok {
		if set := found.(*archive).setting.Load(); set != nil && set.config != nil {
			return found.(*archive)
		}
	}
	return nil
}

// Size returns the memory that Begin needs for events of a Broker, 0 if they are not archived.
func (s *Store) Size(broker types.UID, events []*event.Event) (bytes int) {
	if s.active(broker) == nil {
		return 0
	}
	for _, e := range events {
		bytes += headerBytes + sizeBytes + e.Size()
	}
	return bytes
}

// Begin archives events that a Broker accepts, if it has an archive. The caller makes them durable for the consumers after it, and calls end
// before it answers: when end returns, the events are durable in the archive, or counted because they could not be. When Begin returns, their
// place in the archive is certain, so that it has no reply before the event that it replies to; usually it does not wait for the disk. The events
// may not change until Begin returns. A nil Store archives none.
func (s *Store) Begin(ctx context.Context, broker types.UID, accepted time.Time, events []*event.Event) (end func()) {
	if a := s.active(broker); a != nil {
		return a.begin(ctx, accepted, events)
	}
	return func() {}
}

func (a *archive) begin(ctx context.Context, accepted time.Time, events []*event.Event) (end func()) {
	if len(events) == 0 {
		return func() {}
	}
	a.used.Store(true)
	records, buffer := encode(accepted, events)
	if end := a.start(ctx, records); end != nil {
		return func() {
			end()
			free(buffer)
		}
	}
	defer free(buffer)
	a.finish(ctx, len(events), a.append(ctx, records))
	return func() {}
}

// start starts to append records if nothing delays that: they are one record that fits, and an earlier append has succeeded. It returns nil
// otherwise.
func (a *archive) start(ctx context.Context, records []record) (end func()) {
	limit, bytes := a.store.limit(a.setting.Load()), int64(len(records[0].data))
	if len(records) > 1 || !a.stream.Fits(limit, bytes) || !a.number(&records[0]) {
		return nil
	}
	pending, started, err := a.stream.Start(eventlog.Record{Data: records[0].data}) //nolint:contextcheck // a commit serves all waiting callers, so it does not end with the context of one
	if err != nil || !started {
		return nil
	}
	// The events are accepted even if their sender disconnects before they are archived.
	ctx = context.WithoutCancel(ctx)
	return func() {
		err := pending.Wait(ctx)
		switch {
		case err == nil:
			a.stream.Grow(bytes)
			a.store.sweeper.Added(bytes, min(limit, a.store.options.MaxTotalBytes))
		case errors.Is(err, eventlog.ErrFull):
			err = a.append(ctx, records)
		}
		a.finish(ctx, records[0].events, err)
	}
}

// number sets the number of the first event of a record. It returns false if it is not known yet.
func (a *archive) number(r *record) bool {
	if !a.opened.Load() {
		return false
	}
	events := uint64(r.events)
	setNumber(r.data, a.next.Add(events)-events)
	return true
}

// append numbers and appends records.
func (a *archive) append(ctx context.Context, records []record) error {
	appended, bytes := make([]eventlog.Record, len(records)), int64(retention.Overhead)
	for i := range records {
		for !a.number(&records[i]) {
			if err := a.open(ctx); err != nil {
				return err
			}
		}
		appended[i].Data = records[i].data
		bytes += int64(len(records[i].data))
	}
	limit := a.store.limit(a.setting.Load())
	full, err := a.stream.Add(ctx, limit, bytes, func(ctx context.Context) error { return a.stream.AppendTogether(ctx, appended...) })
	if full {
		a.store.sweeper.Soon()
	}
	if err == nil {
		a.store.sweeper.Added(bytes, min(limit, a.store.options.MaxTotalBytes))
	}
	return err
}

// finish counts events by the result of their append.
func (a *archive) finish(ctx context.Context, events int, err error) {
	switch {
	case err == nil:
		a.namespace.archived.Add(int64(events))
		a.failing.Store(false)
	case ctx.Err() != nil:
		// The sender gets no answer.
	default:
		a.namespace.missed.Add(int64(events))
		if !a.failing.Swap(true) {
			a.store.options.Logger.Info("Failed to archive events; accepting them without", "namespace", a.namespace.name, "broker", a.broker, "reason", err.Error())
		}
	}
}

// open reads the number of the next event, unless it is known.
func (a *archive) open(ctx context.Context) error {
	a.opening.Lock()
	defer a.opening.Unlock()
	if a.opened.Load() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	for {
		err := a.readNext(ctx)
		if err == nil || !errors.Is(err, eventlog.ErrUnavailable) || !backoff.Sleep(ctx, a.store.options.Clock, openPause) {
			return err
		}
	}
}

// readNext sets the number of the next event. opening is held.
func (a *archive) readNext(ctx context.Context) error {
	state, _, err := a.stream.State(ctx)
	if err == nil && state.Messages > 0 {
		var last eventlog.RetainedMessage
		if last, err = a.stream.Get(ctx, state.Last); err == nil {
			for _, record := range last.Records {
				if h, events, err := parse(record); err == nil {
					raise(&a.next, h.number+uint64(len(events)))
				}
			}
		}
	}
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return err
	}
	a.opened.Store(true)
	return nil
}

// raise makes a value at least next.
func raise(value *atomic.Uint64, next uint64) {
	for {
		if known := value.Load(); known >= next || value.CompareAndSwap(known, next) {
			return
		}
	}
}

// limit returns the size of an archive with a setting.
func (s *Store) limit(set *setting) int64 {
	if set == nil || set.config == nil || set.config.MaxBytes == 0 {
		return s.options.MaxBytes
	}
	return min(set.config.MaxBytes, s.options.MaxBytes)
}

// retention returns the age at which events of an archive with a setting are deleted.
func (s *Store) retention(set *setting) time.Duration {
	if set == nil || set.config == nil {
		return s.options.MaxRetention
	}
	return min(set.config.Retention, s.options.MaxRetention)
}

// evict deletes the oldest events if they have more bytes than a limit, until they have at most so many as target. Errors are only logged: an
// archive that exceeds its limit is better than events that are not archived, and the next append or sweep tries again.
func (a *archive) evict(ctx context.Context, limit, target int64) error {
	err := a.delete(ctx, &a.namespace.evicted, func() (uint64, error) {
		return a.stream.Shrink(ctx, limit, target, func(map[string]uint64) {})
	})
	if err != nil && ctx.Err() == nil {
		a.store.options.Logger.Info("Failed to evict archived events; retrying", "namespace", a.namespace.name, "broker", a.broker, "reason", err.Error())
	}
	return nil
}

// delete calls do, which deletes the oldest messages and returns their number, and counts the deleted events.
func (a *archive) delete(ctx context.Context, count *atomic.Int64, do func() (uint64, error)) error {
	before, errBefore := a.first(ctx)
	purged, err := do()
	if purged == 0 {
		return err
	}
	after, errAfter := a.first(ctx)
	switch {
	case errBefore != nil || errAfter != nil || after <= before:
		// A damaged message, or two replicas archive at a time. Messages have at least one event.
		count.Add(int64(purged))
	default:
		count.Add(int64(after - before))
	}
	return err
}

// first returns the number of the first event, or of the next one if there is none.
func (a *archive) first(ctx context.Context) (uint64, error) {
	messages, _, err := a.stream.Read(ctx, "", 1, 1, 1)
	if err != nil && !errors.Is(err, eventlog.ErrNotFound) {
		return 0, err
	}
	if len(messages) > 0 {
		return lowest(&messages[0])
	}
	return a.next.Load(), nil
}

// lowest returns the lowest number of the events of a message: concurrent appends may be stored in another order.
func lowest(m *eventlog.RetainedMessage) (number uint64, err error) {
	for i, record := range m.Records {
		h, _, err := parse(record)
		if err != nil {
			return 0, err
		}
		if i == 0 || h.number < number {
			number = h.number
		}
	}
	return number, nil
}

// Run sweeps until ctx is canceled.
func (s *Store) Run(ctx context.Context) { s.sweeper.Run(ctx) }

// Sweep deletes the archives of Brokers that do not exist, or have had no archive for an hour, and events that are too old or exceed the
// limits.
func (s *Store) Sweep(ctx context.Context) error {
	s.sweeper.Begin()
	states, err := s.options.Log.RetainedStates(ctx, idPrefix)
	if err != nil {
		return err
	}
	var errs []error
	all := make([]*archive, len(states))
	uids := make([]types.UID, 0, len(states))
	for i := range states {
		namespace, uid, _ := strings.Cut(strings.TrimPrefix(states[i].ID, idPrefix), separator)
		a, err := s.archive(namespace, types.UID(uid))
		if err != nil {
			errs = append(errs, err)
			continue
		}
		all[i], uids = a, append(uids, a.broker)
	}
	gone, err := s.options.Gone(ctx, uids)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	var kept []*archive
	for i, a := range all {
		switch {
		case a == nil:
		case gone.Has(a.broker):
			errs = append(errs, a.stream.DeleteStream(ctx))
			s.archives.Delete(a.broker)
		case a.disabled():
			s.options.Logger.Info("Deleting the archive of a Broker that has none anymore", "namespace", a.namespace.name, "broker", a.broker)
			errs = append(errs, a.stream.DeleteStream(ctx))
			a.stream.SetBytes(0)
		default:
			errs = append(errs, a.sweep(ctx, &states[i]))
			kept = append(kept, a)
		}
	}
	return errors.Join(append(errs, s.limitAll(ctx, kept))...)
}

// disabled reports whether the Broker has had no archive for long enough.
func (a *archive) disabled() bool {
	set, o := a.setting.Load(), &a.store.options
	return set != nil && set.config == nil && o.Clock.Since(set.since) >= disabledDelay
}

// sweep deletes events that are too old.
func (a *archive) sweep(ctx context.Context, state *eventlog.RetainedState) error {
	a.stream.SetBytes(state.Bytes)
	if !a.used.Swap(false) {
		// Another replica may append meanwhile.
		a.opened.Store(false)
	}
	oldest := a.store.options.Clock.Now().Add(-a.store.retention(a.setting.Load()))
	if state.Messages == 0 || !state.FirstTime.Before(oldest) {
		return nil
	}
	err := a.delete(ctx, &a.namespace.expired, func() (uint64, error) { return a.stream.Expire(ctx, state, oldest) })
	if err != nil {
		return err
	}
	now, _, err := a.stream.State(ctx)
	if err == nil {
		a.stream.SetBytes(now.Bytes)
	}
	return err
}

// limitAll evicts events until no archive exceeds its limit, nor the ones of a namespace, nor all together theirs: the namespaces with most bytes,
// and in them the archives with most, get the same lower limit. While the disk is nearly full, all archives together lose a quarter in
// each sweep.
func (s *Store) limitAll(ctx context.Context, all []*archive) error {
	byNamespace := map[*namespace][]*archive{}
	total := int64(0)
	for _, a := range all {
		byNamespace[a.namespace] = append(byNamespace[a.namespace], a)
		total += a.stream.Bytes()
	}
	s.options.Log.SetRetainedBytes(idPrefix, total)
	s.metrics.bytes.Store(total)
	held := make([]int64, 0, len(byNamespace))
	for _, archives := range byNamespace {
		sum := int64(0)
		for _, a := range archives {
			sum += a.stream.Bytes()
		}
		held = append(held, sum)
	}
	share := retention.LimitOf(held, s.options.MaxBytes, s.options.MaxTotalBytes, errors.Is(s.options.Log.SpaceErr(), eventlog.ErrFull))
	var errs []error
	for _, archives := range byNamespace {
		sizes := make([]int64, len(archives))
		for i, a := range archives {
			sizes[i] = min(a.stream.Bytes(), s.limit(a.setting.Load()))
		}
		each := retention.LimitOf(sizes, share, share, false)
		for _, a := range archives {
			errs = append(errs, a.stream.Limit(ctx, min(each, s.limit(a.setting.Load()))))
		}
	}
	return errors.Join(errs...)
}

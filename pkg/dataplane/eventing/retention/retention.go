// Package retention bounds retained streams of the event log, such as the dead letters of a namespace or the archive of a Broker: it evicts
// the oldest messages of a stream that has too many bytes, and deletes messages that are too old.
package retention

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

const (
	// Overhead is the size of a message besides its data, in bytes.
	Overhead = 128

	// roomParts is the divisor of a limit that yields what an eviction frees, and what may exceed the limit meanwhile.
	roomParts = 8
	// sweepInterval is the time between sweeps without many additions, sweepPause the minimum.
	sweepInterval, sweepPause = 30 * time.Second, time.Second
	// maxRounds bounds the purges of one eviction: each frees the rest if all messages have the same size.
	maxRounds = 32
)

// Room returns the size that an eviction leaves of a stream with a limit.
func Room(limit int64) int64 { return limit - limit/roomParts }

// Stream is a retained stream whose size is bounded. Its methods may be called concurrently.
type Stream struct {
	*eventlog.Retained
	// evict evicts the oldest messages if they have more bytes than limit, until they have at most target, usually by Shrink.
	evict func(ctx context.Context, limit, target int64) error
	// bytes is the size of the stream, as far as this process knows. It is negative until that is known.
	bytes atomic.Int64
	// evicting is held while messages are evicted.
	evicting sync.Mutex
}

// NewStream returns a stream that evict makes smaller: if it has more bytes than limit, until it has at most target.
func NewStream(messages *eventlog.Retained, evict func(ctx context.Context, limit, target int64) error) *Stream {
	s := &Stream{Retained: messages, evict: evict}
	s.bytes.Store(-1)
	return s
}

// Bytes returns the size of the stream, as far as this process knows.
func (s *Stream) Bytes() int64 { return max(s.bytes.Load(), 0) }

// SetBytes sets the size of the stream.
func (s *Stream) SetBytes(bytes int64) { s.bytes.Store(bytes) }

// Add calls add, which appends so many bytes to the stream. It evicts messages before if the stream would exceed the limit, and half of them
// if the disk is full. full reports whether it was. An error wraps an error of the event log: eventlog.ErrFull if the disk is full without any
// messages of the stream.
func (s *Stream) Add(ctx context.Context, limit, bytes int64, add func(context.Context) error) (full bool, err error) {
	if err := s.makeRoom(ctx, limit, bytes); err != nil {
		return false, err
	}
	err = add(ctx)
	if full = errors.Is(err, eventlog.ErrFull); full && s.halve(ctx) {
		err = add(ctx)
	}
	if err == nil {
		s.Grow(bytes)
	}
	return full, err
}

// Fits reports whether so many bytes can be appended without an eviction. The caller may append them without Add, and call Grow.
func (s *Stream) Fits(limit, bytes int64) bool {
	held := s.bytes.Load()
	return held >= 0 && held+bytes <= limit
}

// Grow notes that bytes were appended.
func (s *Stream) Grow(bytes int64) { s.bytes.Add(bytes) }

// makeRoom evicts messages if others would exceed the limit. Only callers that would exceed it by far wait for the eviction of another.
func (s *Stream) makeRoom(ctx context.Context, limit, bytes int64) error {
	if s.Fits(limit, bytes) {
		return nil
	}
	if !s.Fits(limit+limit/roomParts, bytes) {
		s.evicting.Lock()
	} else if !s.evicting.TryLock() {
		return nil
	}
	defer s.evicting.Unlock()
	if s.Fits(limit, bytes) {
		return nil
	}
	return s.evict(ctx, limit-bytes, Room(limit)-bytes)
}

// halve evicts half of the messages, and reports whether there were any.
func (s *Stream) halve(ctx context.Context) bool {
	s.evicting.Lock()
	defer s.evicting.Unlock()
	state, _, err := s.State(ctx)
	return err == nil && state.Messages > 0 && s.evict(ctx, 0, state.Bytes/2) == nil
}

// Limit evicts messages if the stream has more bytes than a limit.
func (s *Stream) Limit(ctx context.Context, limit int64) error {
	if s.Bytes() <= limit {
		return nil
	}
	s.evicting.Lock()
	defer s.evicting.Unlock()
	return s.evict(ctx, limit, Room(limit))
}

// Shrink deletes the oldest messages if the stream has more bytes than limit, until it has at most target, and returns their number. It calls
// observe with the first and each later state of the stream, with the number of messages by queue. It must be called by evict only.
func (s *Stream) Shrink(ctx context.Context, limit, target int64, observe func(queues map[string]uint64)) (purged uint64, err error) {
	for round := range maxRounds {
		state, queues, err := s.State(ctx)
		if errors.Is(err, eventlog.ErrNotFound) {
			s.bytes.Store(0)
			return purged, nil
		}
		if err != nil {
			return purged, err
		}
		s.bytes.Store(state.Bytes)
		observe(queues)
		most := target
		if round == 0 {
			most = limit
		}
		if state.Bytes <= most || state.Messages == 0 {
			return purged, nil
		}
		// The bytes are spread evenly over the sequences, more or less.
		sequences := float64(state.Last - state.First + 1)
		step := uint64(sequences*float64(state.Bytes-max(target, 0))/float64(state.Bytes)) + 1
		n, err := s.Purge(ctx, "", min(state.First+step, state.Last+1))
		purged += n
		if err != nil {
			return purged, err
		}
	}
	return purged, nil
}

// Expire deletes the messages of a stream in a state that were stored before a time, and returns their number.
func (s *Stream) Expire(ctx context.Context, state *eventlog.RetainedState, oldest time.Time) (purged uint64, err error) {
	if state.Messages == 0 || !state.FirstTime.Before(oldest) {
		return 0, nil
	}
	first, err := s.SequenceAt(ctx, oldest)
	if errors.Is(err, eventlog.ErrNotFound) {
		first, err = state.Last+1, nil
	}
	if err != nil {
		return 0, err
	}
	return s.Purge(ctx, "", first)
}

// LimitOf returns the limit of each of several users of space that hold so many bytes: at most each, and less for the ones with most if all
// together exceed the limit all. While the disk is nearly full, they lose a quarter together.
func LimitOf(held []int64, each, all int64, full bool) int64 {
	total := int64(0)
	for _, bytes := range held {
		total += bytes
	}
	target := Room(all)
	if full {
		all, target = 0, total*3/4
	}
	if total > all {
		return min(each, level(held, target))
	}
	return each
}

// level returns the limit with which the sum of sizes is at most total.
func level(sizes []int64, total int64) int64 {
	sizes = slices.Sorted(slices.Values(sizes))
	for i, size := range sizes {
		share := total / int64(len(sizes)-i)
		if size > share {
			return share
		}
		total -= size
	}
	if len(sizes) == 0 {
		return total
	}
	return sizes[len(sizes)-1]
}

// Sweeper calls a function periodically, and soon after many bytes were added.
type Sweeper struct {
	// Subject is what is swept, for the log. Sweep is not called concurrently by Run.
	Subject string
	Sweep   func(context.Context) error
	Clock   clock.WithTicker
	Logger  logr.Logger

	// added is the number of bytes added since the last sweep; crowded receives a value when they are many.
	added   atomic.Int64
	crowded chan struct{}
	once    sync.Once
}

func (s *Sweeper) soon() chan struct{} {
	s.once.Do(func() { s.crowded = make(chan struct{}, 1) })
	return s.crowded
}

// Soon makes Run sweep soon.
func (s *Sweeper) Soon() {
	select {
	case s.soon() <- struct{}{}:
	default:
	}
}

// Added counts bytes of a user with a limit. They are many when they exceed a part of the limit since the last sweep.
func (s *Sweeper) Added(bytes, limit int64) {
	if s.added.Add(bytes) > limit/roomParts {
		s.Soon()
	}
}

// Begin is to be called when a sweep begins.
func (s *Sweeper) Begin() { s.added.Store(0) }

// Run sweeps until ctx is canceled.
func (s *Sweeper) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := s.Sweep(ctx); err != nil && ctx.Err() == nil {
			s.Logger.Info("Failed to sweep "+s.Subject+"; retrying", "reason", err.Error())
		}
		if !s.wait(ctx, sweepPause, nil) || !s.wait(ctx, sweepInterval-sweepPause, s.soon()) {
			return
		}
	}
}

// wait waits for a time, or until early receives a value. It returns false when ctx is canceled.
func (s *Sweeper) wait(ctx context.Context, d time.Duration, early <-chan struct{}) bool {
	timer := s.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-early:
		return true
	case <-ctx.Done():
		return false
	}
}

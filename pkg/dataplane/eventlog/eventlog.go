// Package eventlog is the durable log behind brokers and channels, on NATS JetStream: embedded in this process, alone or
// as one server of several in as many processes, or an existing NATS cluster.
//
// A Stream holds the events of one Broker or Channel until every frame of them is done. Its records are in queues:
// the shared one, and one for each consumer that has events to be sent again. Appends that run at the same time
// are written together, those of one queue as one message (a frame), so that what durability costs is paid per
// commit and not per event. A frame is removed when it is done, and handed to a consumer again, also by the next
// process, until then: at least once, never not at all (eventing Event Acknowledgement and Delivery Retry).
package eventlog

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/component-base/metrics"
)

// Errors of Append, to be told apart by errors.Is. With ErrTooLarge nothing was stored; with any other some records
// may be, so that who appends them again has them twice.
var (
	// ErrFull says that a limit of the log or its disk is reached; it takes records again when frames are done.
	ErrFull = errors.New("the event log is full")
	// ErrShareFull wraps ErrFull. It says that the streams of one tenant hold as much of the log as they may; those of
	// others take records.
	ErrShareFull = fmt.Errorf("%w for this tenant", ErrFull)
	// ErrTooLarge says that a record is larger than the server's messages may be.
	ErrTooLarge = errors.New("the record is too large for the event log")
	// ErrClosed says that the log was closed, or the stream deleted.
	ErrClosed = errors.New("the event log is closed")
	// ErrUnavailable says that the log cannot be reached or written at present.
	ErrUnavailable = errors.New("the event log is unavailable")
)

// Options say where the log is.
type Options struct {
	// Dir holds the embedded server's store, which is used if URL is empty. It is created, with mode 0700.
	Dir string
	// Cluster has the embedded server be one of several; nil for a single one.
	Cluster *Cluster
	// URL is that of an existing NATS cluster, its servers separated by commas.
	URL string
	// CredentialsFile, CAFile, CertFile and KeyFile are for the connection to URL; each may be empty.
	CredentialsFile, CAFile, CertFile, KeyFile string
	// Replicas is the number of servers of URL, or of Cluster, that hold each stream; 0 means 1.
	Replicas int

	// MaxBytes bounds the embedded store as a whole, but for streams in memory, which have 1 GiB; 0 means no bound.
	// MaxStreamBytes bounds each stream; 0 means a quarter of what the embedded store may take, of its filesystem if that is
	// not bounded, and no bound at the URL. All streams of one tenant in the embedded store take new records up to half of what
	// it may take, or up to MaxStreamBytes if that is more. Bytes written within a few milliseconds may exceed MaxBytes by what they take
	// besides the records.
	MaxBytes, MaxStreamBytes int64
	// MinFreeBytes is the free space of Dir's filesystem below which the embedded log is full, for a server that
	// meets the end of its disk fails. 0 means 64 MiB, less on filesystems below 1 GiB.
	MinFreeBytes int64

	// Installation tells our streams from those of others in the same NATS: letters, digits, "-" and "_". Empty
	// means "local".
	Installation string
	Logger       logr.Logger
	// Register takes the log's metrics, which have no labels; nil for none.
	Register func(...metrics.Registerable)
}

// Log is the event log. Its methods may be called from several goroutines.
type Log struct {
	opts    Options
	logger  logr.Logger
	metrics *instruments
	space   *space // nil unless embedded
	// memory and disk bound all streams there together; nil for no bound.
	memory, disk *quota
	// memoryShares and diskShares bound what the streams of each tenant hold there; nil unless embedded.
	memoryShares, diskShares *shares

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // supervise, keepAlive, adopt
	local  *local         // nil unless embedded

	current atomic.Pointer[session]
	// trouble is why there is no usable session, wrapping ErrFull or ErrUnavailable; nil if there is one.
	trouble atomic.Pointer[error]
	// suspect has supervise look at the embedded server right away.
	suspect chan struct{}

	mu           sync.Mutex
	changed      chan struct{} // closed and replaced whenever current is
	streams      map[string]*Stream
	consumptions map[*Consumption]struct{}
	restoreHooks RestoreHooks
}

// session is a connection to one run of a server. Immutable but for unsynced.
type session struct {
	server *server.Server // nil unless embedded
	// near says that all streams are in this process, so that no message is lost on the way.
	near       bool
	unmendable map[string]bool // what the server found wrong with its streams when it started
	nc         *nats.Conn
	js         jetstream.JetStream
	ended      chan struct{} // closed when another takes its place, or the log is closed
	// unsynced is the first stream whose files could not be synced, nil if there is none.
	unsynced atomic.Pointer[Stream]
}

var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// Open starts the embedded server, or connects to the one at the URL, for which it takes 10 s at most. It does not wait
// for the other servers of a Cluster: until most of them are there, what needs them is ErrUnavailable. Its errors say
// which directory cannot be written, which URL not be reached, or what its JetStream lacks.
func Open(ctx context.Context, o Options) (*Log, error) {
	if o.Installation == "" {
		o.Installation = "local"
	}
	if !names.MatchString(o.Installation) {
		return nil, fmt.Errorf("event log: installation '%s' must consist of letters, digits, '-' and '_'", o.Installation)
	}
	o.Replicas = max(o.Replicas, 1)
	if o.URL == "" && o.MaxStreamBytes == 0 && o.MaxBytes > 0 {
		o.MaxStreamBytes = max(o.MaxBytes/streamShare, 1)
	}
	if o.URL == "" && o.Cluster != nil {
		if err := o.Cluster.validate(); err != nil {
			return nil, fmt.Errorf("event log: %w", err)
		}
	}
	l := &Log{
		opts: o, logger: o.Logger.WithName("eventlog"), metrics: newInstruments(o.Register),
		suspect: make(chan struct{}, 1), changed: make(chan struct{}),
		streams: map[string]*Stream{}, consumptions: map[*Consumption]struct{}{},
	}
	// What the log does in the background ends with Close, not with what opened it.
	l.ctx, l.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var s *session
	var err error
	if o.URL == "" {
		s, err = l.openEmbedded()
	} else {
		s, err = l.openExternal(ctx)
	}
	if err != nil {
		l.cancel()
		return nil, err
	}
	l.current.Store(s)
	if l.embedded() {
		if l.local, err = l.offer(); err != nil {
			l.cancel()
			s.end()
			return nil, err
		}
		l.wg.Go(l.supervise)
	}
	l.wg.Go(l.keepAlive)
	if l.clustered() {
		l.wg.Go(l.adopt)
	}
	return l, nil
}

func (l *Log) embedded() bool { return l.opts.URL == "" }

// Close stops all consumptions and the embedded server. What was done is done for good when it returns; frames
// that are not come again at once when the log is opened next.
func (l *Log) Close() error {
	l.mu.Lock()
	select {
	case <-l.ctx.Done():
		l.mu.Unlock()
		return nil
	default:
	}
	l.cancel()
	consumptions := make([]*Consumption, 0, len(l.consumptions))
	for c := range l.consumptions {
		consumptions = append(consumptions, c)
	}
	l.mu.Unlock()
	if l.local != nil {
		l.local.end()
	}
	l.wg.Wait()
	for _, c := range consumptions {
		c.release()
	}
	l.mu.Lock()
	s := l.current.Swap(nil)
	l.mu.Unlock()
	if s == nil {
		return nil
	}
	// A round trip after the acknowledgements: the server has taken them in.
	err := s.nc.FlushTimeout(5 * time.Second)
	s.end()
	if err != nil {
		return fmt.Errorf("event log: flush acknowledgements: %w", err)
	}
	return nil
}

// end stops what a session consists of.
func (s *session) end() {
	close(s.ended)
	s.nc.Close()
	if s.server != nil {
		s.server.Shutdown()
		s.server.WaitForShutdown()
	}
}

// session returns the one in use, which it waits for, until ctx ends or the log is closed.
func (l *Log) session(ctx context.Context) (*session, error) {
	for {
		l.mu.Lock()
		changed, s := l.changed, l.current.Load()
		l.mu.Unlock()
		if l.ctx.Err() != nil {
			return nil, ErrClosed
		}
		if s != nil {
			return s, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err := l.unusable(); err != nil {
				return nil, err
			}
			return nil, ctx.Err()
		case <-l.ctx.Done():
		}
	}
}

// use makes s the session in use; nil for none.
func (l *Log) use(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current.Store(s)
	close(l.changed)
	l.changed = make(chan struct{})
}

// unusable returns why there is no usable session, nil if there is one.
func (l *Log) unusable() error {
	if err := l.trouble.Load(); err != nil {
		return *err
	}
	return nil
}

// Package server provides sessions with NATS JetStream: an embedded server, alone or in a cluster of several processes, or
// existing servers at a URL. It restarts the embedded server after a failure, and watches its disk.
package server

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/component-base/metrics"
)

// APITimeout bounds a request to a cluster other than for records.
const APITimeout = 5 * time.Second

// Options configure Open.
type Options struct {
	// Dir is the directory of the embedded server's store, which is used if URL is empty. It is created, with mode 0700.
	Dir string
	// Cluster makes the embedded server one of several; nil for a single one.
	Cluster *Cluster
	// MinFreeBytes is the free space of Dir's filesystem below which the embedded server is full, because a server that
	// reaches the end of its disk fails. 0 means 64 MiB, less on filesystems below 1 GiB.
	MinFreeBytes int64
	// Restarts counts restarts of the embedded server.
	Restarts metrics.CounterMetric

	// URL is the address of existing NATS servers, separated by commas.
	URL string
	// CredentialsFile, CAFile, CertFile and KeyFile are for the connection to URL; each may be empty.
	CredentialsFile, CAFile, CertFile, KeyFile string
	// Probe is a stream that Open creates at URL and deletes, to detect missing permissions, servers and features.
	Probe jetstream.StreamConfig

	// Replicas is the number of servers that hold each stream, at least 1.
	Replicas int
	// Installation distinguishes the servers and connections of this installation.
	Installation string
	Logger       logr.Logger
}

// Server is the embedded server, or the connection to existing ones.
type Server struct {
	options Options
	logger  logr.Logger
	space   *Space // nil unless embedded

	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup // supervise

	current atomic.Pointer[Session]
	// failure is why no session is usable, wrapping ErrFull or ErrUnavailable; nil if one is.
	failure atomic.Pointer[error]
	// suspected makes supervise check the embedded server immediately.
	suspected chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever current is
	tracked map[string]trackedStream
}

// Session is a connection to one run of a server.
type Session struct {
	Conn      *nats.Conn
	JetStream jetstream.JetStream
	// Embedded is the server in this process, nil for one at a URL.
	Embedded *server.Server
	// Local is true if all streams are in this process, so that no message is lost in transit.
	Local bool

	owner      *Server
	unrepaired map[string]bool // faults of streams when the server started
	ended      chan struct{}
	// rewrite is the argument of the first FailSync.
	rewrite atomic.Pointer[func() error]
}

// Open starts the embedded server, or connects to the one at the URL, which takes 10 s at most. It does not wait for the
// other servers of a Cluster: until most of them run, requests that need them fail with ErrUnavailable. Its errors name
// the directory that cannot be written, the URL that cannot be reached, or the missing feature.
func Open(ctx context.Context, o Options) (*Server, error) {
	s := &Server{
		options: o, logger: o.Logger, suspected: make(chan struct{}, 1), changed: make(chan struct{}), tracked: map[string]trackedStream{},
	}
	// Background work stops with Stop, not with the caller's context.
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	var session *Session
	var err error
	if s.Embedded() {
		s.space = NewSpace(o.Dir, o.MinFreeBytes)
		session, err = s.start()
	} else {
		session, err = s.connect(ctx)
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.current.Store(session)
	if s.Embedded() {
		s.wg.Go(s.supervise)
	}
	return s, nil
}

// Embedded reports whether the server runs in this process.
func (s *Server) Embedded() bool { return s.options.URL == "" }

// Clustered reports whether the embedded server is one of several.
func (s *Server) Clustered() bool { return s.Embedded() && s.options.Cluster != nil }

// Context is canceled by Stop.
func (s *Server) Context() context.Context { return s.ctx }

// Space checks the disk of the embedded server; it is nil for servers at a URL.
func (s *Server) Space() *Space { return s.space }

// Stop ends supervision and makes Session fail with ErrClosed. The current session continues until Close.
func (s *Server) Stop() {
	s.cancel()
	s.wg.Wait()
}

// Close ends the session and the embedded server, after Stop. The server has processed all that was sent before.
func (s *Server) Close() error {
	s.mu.Lock()
	session := s.current.Swap(nil)
	s.mu.Unlock()
	if session == nil {
		return nil
	}
	// The server processes acknowledgements before it responds.
	err := session.Conn.FlushTimeout(5 * time.Second)
	session.end()
	if err != nil {
		return fmt.Errorf("event log: flush acknowledgements: %w", err)
	}
	return nil
}

// Session waits for a usable session, until ctx is canceled or Stop is called.
func (s *Server) Session(ctx context.Context) (*Session, error) {
	for {
		s.mu.Lock()
		changed, session := s.changed, s.current.Load()
		s.mu.Unlock()
		if s.ctx.Err() != nil {
			return nil, ErrClosed
		}
		if session != nil {
			return session, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if err := s.Err(); err != nil {
				return nil, err
			}
			return nil, ctx.Err()
		case <-s.ctx.Done():
		}
	}
}

// Current returns the session in use, nil if none is usable.
func (s *Server) Current() *Session { return s.current.Load() }

// Err returns why no session is usable, wrapping ErrFull or ErrUnavailable; nil if one is.
func (s *Server) Err() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// Health returns why the server does not accept or deliver records; in a cluster, also whether this server is still
// catching up. It wraps ErrFull, ErrUnavailable or ErrClosed.
func (s *Server) Health() error {
	if s.ctx.Err() != nil {
		return ErrClosed
	}
	if err := s.Err(); err != nil {
		return err
	}
	session := s.current.Load()
	switch {
	case session == nil, !session.Conn.IsConnected():
		return fmt.Errorf("%w: not connected to the server", ErrUnavailable)
	case s.Clustered():
		if status := session.Embedded.Healthz(nil); status.Error != "" {
			return fmt.Errorf("%w: %s", ErrUnavailable, status.Error)
		}
	}
	return nil
}

// use makes session the current one; nil for none.
func (s *Server) use(session *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(session)
	close(s.changed)
	s.changed = make(chan struct{})
}

// newSession returns a session on a connection.
func (s *Server) newSession(embedded *server.Server, nc *nats.Conn) (*Session, error) {
	local := embedded != nil && !s.Clustered()
	timeout := jetstream.WithPublishAsyncTimeout(ackTimeout)
	if local {
		// Supervise ends the session if no response will arrive.
		timeout = jetstream.WithPublishAsyncTimeout(startTimeout)
	}
	js, err := jetstream.New(nc, timeout, jetstream.WithPublishAsyncMaxPending(1<<16))
	if err != nil {
		return nil, err
	}
	return &Session{Embedded: embedded, Local: local, Conn: nc, JetStream: js, owner: s, ended: make(chan struct{})}, nil
}

// Ended is closed when another session replaces this one, or the server is closed: pending responses will not arrive.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// AckTimeout is how long the server may take to acknowledge a message.
func (s *Session) AckTimeout() time.Duration {
	if s.Local {
		return startTimeout
	}
	return ackTimeout
}

// FailSync reports that files of the embedded server could not be synced. The server is stopped, rewrite is called, and the
// server is started again.
func (s *Session) FailSync(rewrite func() error) {
	s.rewrite.CompareAndSwap(nil, &rewrite)
	s.owner.Suspect()
}

// SyncFailed reports whether FailSync was called.
func (s *Session) SyncFailed() bool { return s.rewrite.Load() != nil }

func (s *Session) clustered() bool { return s.Embedded != nil && !s.Local }

// end closes the connection and stops the embedded server.
func (s *Session) end() {
	close(s.ended)
	s.Conn.Close()
	if s.Embedded != nil {
		s.Embedded.Shutdown()
		s.Embedded.WaitForShutdown()
	}
}

package server

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// Session is a connection to one run of a server.
type Session struct {
	Conn      *nats.Conn
	JetStream jetstream.JetStream
	// Embedded is the server in this process, nil for one at a URL.
	Embedded *server.Server
	// Local is true if all streams are in this process, so that no message is lost in transit.
	Local bool

	supervisor *supervisor     // nil for a server at a URL
	unrepaired map[string]bool // faults of streams when the server started
	ended      chan struct{}
	// rewrite is the argument of the first FailSync.
	rewrite atomic.Pointer[func() error]
}

// newSession returns a session on a connection, to an embedded server and its supervisor if these are not nil.
func newSession(nc *nats.Conn, by *supervisor, embedded *server.Server) (*Session, error) {
	s := &Session{
		Embedded: embedded, Local: by != nil && by.options.Cluster == nil, Conn: nc, supervisor: by, ended: make(chan struct{}),
	}
	var err error
	s.JetStream, err = jetstream.New(nc, jetstream.WithPublishAsyncTimeout(s.AckTimeout()), jetstream.WithDefaultTimeout(s.timeout(APITimeout)),
		jetstream.WithPublishAsyncMaxPending(1<<16))
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Ended is closed when another session replaces this one, or the server is closed: pending responses will not arrive.
func (s *Session) Ended() <-chan struct{} { return s.ended }

// AckTimeout is the time in which the server must acknowledge a message.
func (s *Session) AckTimeout() time.Duration { return s.timeout(ackTimeout) }

// timeout returns the limit of a response: remote for servers in other processes. The supervisor ends a local session if no response will
// arrive; one that is only slow, because the process was paused, is worth more time.
func (s *Session) timeout(remote time.Duration) time.Duration {
	if s.Local {
		return startTimeout
	}
	return remote
}

// FailSync reports that files of the embedded server could not be synced. The server is stopped, rewrite is called, and the
// server is started again.
func (s *Session) FailSync(rewrite func() error) {
	s.rewrite.CompareAndSwap(nil, &rewrite)
	s.supervisor.suspect()
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

// sessions has the session in use, or the reason why none is usable.
type sessions struct {
	// ctx is canceled by Server.Stop.
	ctx     context.Context
	current atomic.Pointer[Session]
	// failure is the reason why no session is usable, wrapping ErrFull or ErrUnavailable; nil if one is.
	failure atomic.Pointer[error]

	mu      sync.Mutex
	changed chan struct{} // closed and replaced whenever current is
}

// Session waits for a usable session, until ctx is canceled or Stop is called.
func (s *sessions) Session(ctx context.Context) (*Session, error) {
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
func (s *sessions) Current() *Session { return s.current.Load() }

// Err returns the reason why no session is usable, wrapping ErrFull or ErrUnavailable; nil if one is.
func (s *sessions) Err() error {
	if err := s.failure.Load(); err != nil {
		return *err
	}
	return nil
}

// use makes session the current one; nil for none. A session ends the failure.
func (s *sessions) use(session *Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current.Store(session)
	if session != nil {
		s.failure.Store(nil)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

// remove removes the current session, and returns it, if any.
func (s *sessions) remove() *Session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.current.Swap(nil)
}

// fail records the reason why no session is usable.
func (s *sessions) fail(err error) { s.failure.Store(&err) }

// renew starts a session on the current connection, so that requests whose responses were lost with the connection are
// sent again.
func (s *sessions) renew() {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.current.Load()
	if session == nil || s.ctx.Err() != nil {
		return
	}
	s.current.Store(&Session{Conn: session.Conn, JetStream: session.JetStream, ended: make(chan struct{})})
	close(session.ended)
}

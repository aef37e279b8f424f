// Package server provides sessions with NATS JetStream: an embedded server, alone or in a cluster of several processes, or
// existing servers at a URL. It restarts the embedded server after a failure, and watches its disk.
package server

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats.go/jetstream"
	"k8s.io/component-base/metrics"
)

// APITimeout bounds a request other than for records to servers in other processes, and the wait for a session before any.
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
	// Dial connects to the addresses of URL; nil means net.Dial.
	Dial Dialer
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
	sessions
	// Streams are maintained while the server runs.
	Streams *Streams

	options    Options
	cancel     context.CancelFunc
	supervisor *supervisor    // nil for servers at a URL
	running    sync.WaitGroup // supervise
}

// Open starts the embedded server, or connects to the one at the URL, which takes 10 s at most. It does not wait for the
// other servers of a Cluster: until most of them run, requests that need them fail with ErrUnavailable. Its errors name
// the directory that cannot be written, the URL that cannot be reached, or the missing feature.
func Open(ctx context.Context, o Options) (*Server, error) {
	s := &Server{options: o, Streams: &Streams{tracked: map[string]trackedStream{}}}
	// Background work stops with Stop, not with the caller's context.
	s.ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	s.changed = make(chan struct{})
	var session *Session
	var err error
	if s.Embedded() {
		s.supervisor = &supervisor{
			options: o, space: NewSpace(o.Dir, o.MinFreeBytes), sessions: &s.sessions, streams: s.Streams, suspected: make(chan struct{}, 1),
		}
		session, err = s.supervisor.start()
	} else {
		session, err = connect(ctx, o, &s.sessions)
	}
	if err != nil {
		s.cancel()
		return nil, err
	}
	s.current.Store(session)
	if s.Embedded() {
		s.running.Go(s.supervisor.supervise)
	}
	return s, nil
}

// Embedded reports whether the server runs in this process.
func (s *Server) Embedded() bool { return s.options.URL == "" }

// Clustered reports whether the embedded server is one of several.
func (s *Server) Clustered() bool { return s.Embedded() && s.options.Cluster != nil }

// Request returns a session for a request other than for records, and its context, which cancel ends. Without it, a request to servers in
// other processes might wait for as long as they have no leader.
func (s *Server) Request(ctx context.Context) (session *Session, bounded context.Context, cancel context.CancelFunc, err error) {
	wait, done := context.WithTimeout(ctx, APITimeout)
	defer done()
	if session, err = s.Session(wait); err != nil {
		return nil, nil, nil, err
	}
	bounded, cancel = context.WithTimeout(ctx, session.timeout(APITimeout))
	return session, bounded, cancel, nil
}

// Context is canceled by Stop.
func (s *Server) Context() context.Context { return s.ctx }

// Space checks the disk of the embedded server; it is nil for servers at a URL.
func (s *Server) Space() *Space {
	if s.supervisor == nil {
		return nil
	}
	return s.supervisor.space
}

// Suspect triggers an immediate check of the embedded server, if any.
func (s *Server) Suspect() {
	if s.supervisor != nil {
		s.supervisor.suspect()
	}
}

// Stop ends supervision and makes Session fail with ErrClosed. The current session continues until Close.
func (s *Server) Stop() {
	s.cancel()
	s.running.Wait()
}

// Close ends the session and the embedded server, after Stop. The server has processed all earlier messages then.
func (s *Server) Close() error {
	session := s.remove()
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

// Health returns the reason why the server does not accept or deliver records; in a cluster, also whether this server is
// still catching up. It wraps ErrFull, ErrUnavailable or ErrClosed.
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

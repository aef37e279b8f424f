package server

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
)

// MaxPayload is the maximum size of a message of the embedded server, in bytes.
const MaxPayload = 16 << 20

const (
	startTimeout = 60 * time.Second
	routeTimeout = 5 * time.Second
	// ackTimeout is how long a server other than the local one may take to acknowledge a message.
	ackTimeout = 4 * time.Second
	// checkInterval is the time between checks of the embedded server, restartInterval the time between attempts to
	// restart it.
	checkInterval   = 5 * time.Second
	restartInterval = 500 * time.Millisecond
)

// start starts the server within this process. Unless it is one of a cluster, it does not listen.
func (s *Server) start() (*Session, error) {
	dir := s.options.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("event log: create directory: %w", err)
	}
	if err := checkWritable(dir); err != nil {
		return nil, fmt.Errorf("event log: directory '%s' must be writable: %w", dir, err)
	}
	if s.Clustered() {
		if err := moveSingle(dir); err != nil {
			return nil, fmt.Errorf("event log: move the store of a single server: %w", err)
		}
	} else if found, err := exists(metaDir(dir)); err != nil || found {
		return nil, errors.Join(fmt.Errorf("event log: the store in '%s' belongs to a server of a cluster, not to a single one", dir), err)
	}
	if err := repair(dir, s.logger); err != nil {
		return nil, fmt.Errorf("event log: repair '%s': %w", dir, err)
	}
	options := &server.Options{
		ServerName: "knative-" + s.options.Installation, DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, DisableJetStreamBanner: true,
		// The log limits what it stores itself.
		JetStreamMaxStore: math.MaxInt64 / 2, JetStreamMaxMemory: math.MaxInt64 / 2,
		MaxPayload: MaxPayload, MaxPending: 512 << 20,
	}
	token := ""
	if s.Clustered() {
		token = s.options.Cluster.configure(options, s.options.Installation)
	}
	embedded, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("event log: configure the embedded server: %w", err)
	}
	session, err := s.connectTo(embedded, token)
	if err != nil {
		embedded.Shutdown()
		embedded.WaitForShutdown()
		return nil, err
	}
	return session, nil
}

// connectTo starts an embedded server and connects to it, with a token if it is not empty.
func (s *Server) connectTo(embedded *server.Server, token string) (*Session, error) {
	embedded.SetLoggerV2(serverLog{s.logger.WithName("nats")}, false, false, false)
	// Start returns when the streams are recovered, or an error stopped the server.
	embedded.Start()
	if !embedded.ReadyForConnections(startTimeout) || !embedded.JetStreamEnabled() {
		return nil, fmt.Errorf("event log: the embedded server does not start on '%s', see its log", s.options.Dir)
	}
	nc, err := nats.Connect("", nats.InProcessServer(embedded), nats.NoReconnect(), nats.Timeout(startTimeout), nats.Token(token))
	if err != nil {
		return nil, fmt.Errorf("event log: connect to the embedded server: %w", err)
	}
	session, err := s.newSession(embedded, nc)
	if err != nil {
		nc.Close()
		return nil, err
	}
	session.unrepaired = session.faults()
	for fault := range session.unrepaired {
		s.logger.Error(errors.New(fault), "Embedded NATS server did not recover all streams", "directory", s.options.Dir)
	}
	return session, nil
}

// supervise restarts the embedded server after a failure: after an error of its disk it no longer writes, even when the
// disk has recovered.
func (s *Server) supervise() {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		suspected := false
		select {
		case <-s.ctx.Done():
			return
		case <-s.suspected:
			suspected = true
		case <-ticker.C:
		}
		if session := s.current.Load(); session != nil {
			// Appends of this process do not show that a cluster's server fails to write for the others.
			if reason := session.failure(suspected || s.Clustered()); reason != "" {
				s.restart(session, reason)
				continue
			}
			s.replicate(session)
		}
	}
}

// Suspect makes the embedded server be checked immediately.
func (s *Server) Suspect() {
	select {
	case s.suspected <- struct{}{}:
	default:
	}
}

// failure returns why an embedded server must be restarted, "" if it need not be. Its streams are checked only on request,
// because that takes longer the more streams exist.
func (s *Session) failure(streams bool) string {
	if s.SyncFailed() {
		return "sync failed"
	}
	if !s.Embedded.JetStreamEnabled() {
		return "JetStream is disabled"
	}
	if s.Conn.IsClosed() {
		return "connection closed"
	}
	if !streams {
		return ""
	}
	// Streams that are created or deleted are reported for a moment, so only permanent faults count.
	found := s.faults()
	for range 3 {
		if len(found) == 0 {
			return ""
		}
		time.Sleep(100 * time.Millisecond)
		still := s.faults()
		maps.DeleteFunc(found, func(fault string, _ bool) bool { return !still[fault] })
	}
	for fault := range found {
		return fault
	}
	return ""
}

// faults returns the faults of the server's streams, except faults that a restart did not repair.
func (s *Session) faults() map[string]bool {
	if !s.Local {
		return s.brokenGroups()
	}
	found := map[string]bool{}
	for _, e := range s.Embedded.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorStream && !s.unrepaired[e.Error] {
			found[e.Error] = true
		}
	}
	return found
}

// Unrepaired returns the faults of streams that the embedded server had when it started.
func (s *Session) Unrepaired() map[string]bool { return s.unrepaired }

// restart stops the server of a session and starts another as soon as the disk is writable. Streams and consumers
// continue with it.
func (s *Server) restart(failed *Session, reason string) {
	s.logger.Error(errors.New(reason), "Restarting failed embedded NATS server", "directory", s.options.Dir)
	s.options.Restarts.Inc()
	s.fail(fmt.Errorf("%w: %s", ErrUnavailable, reason))
	s.use(nil)
	failed.end()
	for s.ctx.Err() == nil {
		var next *Session
		err := failed.rewriteUnsynced()
		if err == nil {
			next, err = s.startNext()
		}
		if err == nil {
			s.use(next)
			s.failure.Store(nil)
			s.logger.Info("Restarted embedded NATS server", "directory", s.options.Dir)
			return
		}
		s.fail(err)
		select {
		case <-s.ctx.Done():
		case <-time.After(restartInterval):
		}
	}
}

func (s *Server) fail(err error) { s.failure.Store(&err) }

// rewriteUnsynced rewrites the files that could not be synced. No server runs meanwhile.
func (s *Session) rewriteUnsynced() error {
	rewrite := s.rewrite.Load()
	if rewrite == nil {
		return nil
	}
	if err := (*rewrite)(); err != nil {
		return fmt.Errorf("%w: rewrite unsynced files: %w", ErrUnavailable, err)
	}
	return nil
}

// startNext starts the server if the disk is writable. Its errors wrap ErrFull or ErrUnavailable.
func (s *Server) startNext() (*Session, error) {
	if err := checkWritable(s.options.Dir); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return nil, fmt.Errorf("%w: %w", ErrFull, err)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := s.space.check(); err != nil {
		return nil, err
	}
	session, err := s.start()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if !session.Local {
		return session, nil
	}
	// Streams in the memory of the only server were lost with it.
	for _, config := range s.trackedStreams(func(t trackedStream) bool { return t.config.Storage == jetstream.MemoryStorage }) {
		ctx, cancel := context.WithTimeout(s.ctx, startTimeout)
		_, err := session.JetStream.CreateOrUpdateStream(ctx, config)
		cancel()
		if err != nil {
			session.end()
			return nil, fmt.Errorf("%w: create stream '%s': %w", ErrUnavailable, config.Name, err)
		}
	}
	return session, nil
}

// checkWritable writes and syncs a file in dir.
func checkWritable(dir string) error {
	f, err := os.CreateTemp(dir, ".probe-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if _, err := f.Write(make([]byte, 4096)); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", filepath.Base(f.Name()), err)
	}
	return nil
}

// Usage returns how many bytes the embedded server's streams hold; 0 while it is down.
func (s *Server) Usage() (memory, disk int64) {
	session := s.current.Load()
	if session == nil {
		return 0, 0
	}
	usage := session.Embedded.GlobalAccount().JetStreamUsage()
	// The usage of a cluster is the sum over its servers.
	copies := int64(1)
	if !session.Local {
		copies = int64(s.options.Replicas)
	}
	return int64(usage.Memory) / copies, int64(usage.Store) / copies
}

// TenantUsage returns how many bytes the streams of each tenant hold in the embedded server, and whether that is known.
func (s *Server) TenantUsage(storage jetstream.StorageType) (map[string]int64, bool) {
	session := s.current.Load()
	if session == nil {
		return nil, false
	}
	account, err := session.Embedded.JszAccount(&server.JSzOptions{
		Account: session.Embedded.GlobalAccount().GetName(), Streams: true, Config: true,
	})
	if err != nil {
		return nil, false
	}
	held := map[string]int64{}
	for i := range account.Streams {
		stream := &account.Streams[i]
		inMemory := stream.Config.Storage == server.MemoryStorage
		if tenant := stream.Config.Metadata[layout.TenantKey]; tenant != "" && inMemory == (storage == jetstream.MemoryStorage) {
			held[tenant] += int64(stream.State.Bytes)
		}
	}
	return held, true
}

// serverLog is the embedded server's logger. It never ends the process.
type serverLog struct{ logr.Logger }

func (l serverLog) Noticef(format string, v ...any) { l.V(2).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Warnf(format string, v ...any)   { l.V(1).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Errorf(format string, v ...any)  { l.Error(nil, fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any)  { l.Error(nil, fmt.Sprintf(format, v...)) }
func (l serverLog) Debugf(format string, v ...any)  { l.V(4).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Tracef(format string, v ...any)  { l.V(5).Info(fmt.Sprintf(format, v...)) }

package eventlog

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
)

const (
	// maxPayload is that of the embedded server, in bytes.
	maxPayload   = 16 << 20
	startTimeout = 60 * time.Second
	routeTimeout = 5 * time.Second
	// watchEvery is how often the embedded server is looked at unasked, healEvery how often the disk is while
	// the server is down.
	watchEvery = 5 * time.Second
	healEvery  = 500 * time.Millisecond
)

// openEmbedded starts the server within this process. Unless it is one of several, it listens nowhere.
func (l *Log) openEmbedded() (*session, error) {
	dir := l.opts.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("event log: create directory: %w", err)
	}
	if err := probe(dir); err != nil {
		return nil, fmt.Errorf("event log: directory '%s' must be writable: %w", dir, err)
	}
	if l.space == nil {
		l.space = &space{dir: dir, minimum: l.opts.MinFreeBytes}
		l.setQuotas()
		if l.opts.MaxStreamBytes == 0 {
			l.opts.MaxStreamBytes = l.space.size() / streamShare
		}
		l.setShares()
	}
	if l.clustered() {
		if err := setAside(dir); err != nil {
			return nil, fmt.Errorf("event log: set the store of a single server aside: %w", err)
		}
	} else if found, err := exists(metaDir(dir)); err != nil || found {
		return nil, errors.Join(fmt.Errorf("event log: the store in '%s' is that of a server of a cluster, which holds it with others", dir), err)
	}
	if err := mend(dir, l.logger); err != nil {
		return nil, fmt.Errorf("event log: mend '%s': %w", dir, err)
	}
	options := &server.Options{
		ServerName: "knative-" + l.opts.Installation, DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, DisableJetStreamBanner: true,
		// Quotas are the bounds.
		JetStreamMaxStore: math.MaxInt64 / 2, JetStreamMaxMemory: math.MaxInt64 / 2,
		MaxPayload: maxPayload, MaxPending: 512 << 20,
	}
	token := ""
	if l.clustered() {
		token = l.join(options)
	}
	srv, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("event log: set up the embedded server: %w", err)
	}
	s, err := l.start(srv, token)
	if err != nil {
		srv.Shutdown()
		srv.WaitForShutdown()
		return nil, err
	}
	return s, nil
}

// start starts a server and connects to it with a token, if it is not empty.
func (l *Log) start(srv *server.Server, token string) (*session, error) {
	srv.SetLoggerV2(serverLog{l.logger.WithName("nats")}, false, false, false)
	// Start returns when the streams are recovered, or an error stopped the server.
	srv.Start()
	if !srv.ReadyForConnections(startTimeout) || !srv.JetStreamEnabled() {
		return nil, fmt.Errorf("event log: the embedded server does not start on '%s', see its log", l.opts.Dir)
	}
	nc, err := nats.Connect("", nats.InProcessServer(srv), nats.NoReconnect(), nats.Timeout(startTimeout), nats.Token(token))
	if err != nil {
		return nil, fmt.Errorf("event log: connect to the embedded server: %w", err)
	}
	s, err := newSession(srv, nc, !l.clustered())
	if err != nil {
		nc.Close()
		return nil, err
	}
	s.unmendable = s.faults()
	for fault := range s.unmendable {
		l.logger.Error(errors.New(fault), "The embedded NATS server did not recover all streams", "directory", l.opts.Dir)
	}
	return s, nil
}

func newSession(srv *server.Server, nc *nats.Conn, near bool) (*session, error) {
	timeout := jetstream.WithPublishAsyncTimeout(ackTimeout)
	if near {
		// Supervise tells when no answer will come.
		timeout = jetstream.WithPublishAsyncTimeout(startTimeout)
	}
	js, err := jetstream.New(nc, timeout, jetstream.WithPublishAsyncMaxPending(1<<16))
	if err != nil {
		return nil, err
	}
	return &session{server: srv, near: near, nc: nc, js: js, ended: make(chan struct{})}, nil
}

// supervise restarts the embedded server when it failed: after an error of its disk it writes no more, even when
// the disk is well again.
func (l *Log) supervise() {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		doubted := false
		select {
		case <-l.ctx.Done():
			return
		case <-l.suspect:
			doubted = true
		case <-ticker.C:
		}
		if s := l.current.Load(); s != nil {
			// What a cluster's server fails to write for the others is not noticed by what this process appends.
			if why := s.failed(doubted || l.clustered()); why != "" {
				l.restart(s, why)
				continue
			}
			l.grow(s)
		}
	}
}

// failed says what is wrong with an embedded server, or nothing. Its streams are looked at if asked for, as that
// takes longer the more there are.
func (s *session) failed(streams bool) string {
	if s.unsynced.Load() != nil {
		return "sync failed"
	}
	if !s.server.JetStreamEnabled() {
		return "JetStream is disabled"
	}
	if s.nc.IsClosed() {
		return "connection closed"
	}
	if !streams {
		return ""
	}
	// Streams that come and go are reported for a moment, so only what stays counts.
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

// faults returns what the server finds wrong with its streams, but for what a restart did not mend.
func (s *session) faults() map[string]bool {
	if !s.near {
		return s.brokenGroups()
	}
	found := map[string]bool{}
	for _, e := range s.server.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorStream && !s.unmendable[e.Error] {
			found[e.Error] = true
		}
	}
	return found
}

// doubt has supervise look at the embedded server.
func (l *Log) doubt() {
	select {
	case l.suspect <- struct{}{}:
	default:
	}
}

// restart stops the server of s and starts another as soon as the disk can be written. Streams and consumptions go
// on with it.
func (l *Log) restart(s *session, why string) {
	l.logger.Error(errors.New(why), "The embedded NATS server failed and is restarted", "directory", l.opts.Dir)
	l.metrics.restarts.Inc()
	l.fail(fmt.Errorf("%w: %s", ErrUnavailable, why))
	l.use(nil)
	s.end()
	for l.ctx.Err() == nil {
		var next *session
		err := l.rewriteUnsynced(s)
		if err == nil {
			next, err = l.reopen()
		}
		if err == nil {
			l.use(next)
			l.trouble.Store(nil)
			l.logger.Info("The embedded NATS server runs again", "directory", l.opts.Dir)
			return
		}
		l.fail(err)
		select {
		case <-l.ctx.Done():
		case <-time.After(healEvery):
		}
	}
}

// rewriteUnsynced writes anew what the server of s could not sync.
func (l *Log) rewriteUnsynced(s *session) error {
	stream := s.unsynced.Load()
	if stream == nil {
		return nil
	}
	// Nobody commits to the stream before there is another session.
	if err := stream.disk.rewrite(); err != nil {
		return fmt.Errorf("%w: write unsynced files anew: %w", ErrUnavailable, err)
	}
	return nil
}

func (l *Log) fail(err error) { l.trouble.Store(&err) }

// reopen starts the server if the disk lets it. Its errors wrap ErrFull or ErrUnavailable.
func (l *Log) reopen() (*session, error) {
	if err := probe(l.opts.Dir); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return nil, fmt.Errorf("%w: %w", ErrFull, err)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := l.space.lookNow(); err != nil {
		return nil, err
	}
	s, err := l.openEmbedded()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	// Streams in memory are gone with the server that had them, if it was the only one.
	for _, stream := range l.cached() {
		if stream.config.Memory && s.near {
			ctx, cancel := context.WithTimeout(l.ctx, startTimeout)
			_, err := s.js.CreateOrUpdateStream(ctx, l.config(stream.config))
			cancel()
			if err != nil {
				s.end()
				return nil, fmt.Errorf("%w: create stream '%s': %w", ErrUnavailable, stream.config.ID, err)
			}
		}
	}
	return s, nil
}

// probe writes and syncs a file in dir.
func probe(dir string) error {
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

// serverLog is the embedded server's logger. It never ends the process.
type serverLog struct{ logr.Logger }

func (l serverLog) Noticef(format string, v ...any) { l.V(2).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Warnf(format string, v ...any)   { l.V(1).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Errorf(format string, v ...any)  { l.Error(nil, fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any)  { l.Error(nil, fmt.Sprintf(format, v...)) }
func (l serverLog) Debugf(format string, v ...any)  { l.V(4).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Tracef(format string, v ...any)  { l.V(5).Info(fmt.Sprintf(format, v...)) }

package server

import (
	"context"
	"errors"
	"fmt"
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

// MaxPayload is the maximum size of a message of the embedded server, in bytes.
const MaxPayload = 16 << 20

const (
	startTimeout = 60 * time.Second
	routeTimeout = 5 * time.Second
	// ackTimeout is the time in which a server other than the local one must acknowledge a message.
	ackTimeout = 4 * time.Second
	// checkInterval is the time between checks of the embedded server, restartInterval the time between attempts to
	// restart it.
	checkInterval   = 5 * time.Second
	restartInterval = 500 * time.Millisecond
)

// supervisor runs a server in this process, and restarts it after a failure.
type supervisor struct {
	options  Options
	space    *Space
	sessions *sessions
	streams  *Streams
	// suspected makes supervise check the server immediately.
	suspected chan struct{}
}

// start starts the server within this process. It only listens if it is one of a cluster.
func (v *supervisor) start() (*Session, error) {
	dir := v.options.Dir
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("event log: create directory: %w", err)
	}
	if err := checkWritable(dir); err != nil {
		return nil, fmt.Errorf("event log: directory '%s' must be writable: %w", dir, err)
	}
	if v.options.Cluster != nil {
		if err := moveSingle(dir); err != nil {
			return nil, fmt.Errorf("event log: move the store of a single server: %w", err)
		}
	} else if found, err := exists(metaDir(dir)); err != nil || found {
		return nil, errors.Join(fmt.Errorf("event log: the store in '%s' belongs to a server of a cluster, not to a single one", dir), err)
	}
	if err := repair(dir, v.options.Logger); err != nil {
		return nil, fmt.Errorf("event log: repair '%s': %w", dir, err)
	}
	options := &server.Options{
		ServerName: "knative-" + v.options.Installation, DontListen: true, NoSigs: true, NoLog: true,
		JetStream: true, StoreDir: dir, DisableJetStreamBanner: true,
		// The log enforces its own limits.
		JetStreamMaxStore: math.MaxInt64 / 2, JetStreamMaxMemory: math.MaxInt64 / 2,
		MaxPayload: MaxPayload, MaxPending: 512 << 20,
	}
	token := ""
	if v.options.Cluster != nil {
		token = v.options.Cluster.configure(options, v.options.Installation)
	}
	embedded, err := server.NewServer(options)
	if err != nil {
		return nil, fmt.Errorf("event log: configure the embedded server: %w", err)
	}
	session, err := v.run(embedded, token)
	if err != nil {
		embedded.Shutdown()
		embedded.WaitForShutdown()
		return nil, err
	}
	return session, nil
}

// run starts an embedded server and connects to it, with a token if it is not empty.
func (v *supervisor) run(embedded *server.Server, token string) (*Session, error) {
	embedded.SetLoggerV2(serverLog{v.options.Logger.WithName("nats")}, false, false, false)
	// Start returns when the streams are recovered, or an error stopped the server.
	embedded.Start()
	if !embedded.ReadyForConnections(startTimeout) || !embedded.JetStreamEnabled() {
		return nil, fmt.Errorf("event log: the embedded server does not start on '%s', see its log", v.options.Dir)
	}
	nc, err := nats.Connect("", nats.InProcessServer(embedded), nats.NoReconnect(), nats.Timeout(startTimeout), nats.Token(token))
	if err != nil {
		return nil, fmt.Errorf("event log: connect to the embedded server: %w", err)
	}
	session, err := newSession(nc, v, embedded)
	if err != nil {
		nc.Close()
		return nil, err
	}
	session.unrepaired = session.faults()
	for fault := range session.unrepaired {
		v.options.Logger.Error(errors.New(fault), "Embedded NATS server did not recover all streams", "directory", v.options.Dir)
	}
	return session, nil
}

// supervise restarts the embedded server after a failure: after an error of its disk it no longer writes, even when the
// disk has recovered.
func (v *supervisor) supervise() {
	ticker := time.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		suspected := false
		select {
		case <-v.sessions.ctx.Done():
			return
		case <-v.suspected:
			suspected = true
		case <-ticker.C:
		}
		if session := v.sessions.current.Load(); session != nil {
			// Appends of this process do not show that a cluster's server fails to write for the others.
			if reason := session.failure(suspected || v.options.Cluster != nil); reason != "" {
				v.restart(session, reason)
				continue
			}
			v.streams.replicate(v.sessions.ctx, session, v.options.Logger)
		}
	}
}

// suspect makes supervise check the server immediately.
func (v *supervisor) suspect() {
	select {
	case v.suspected <- struct{}{}:
	default:
	}
}

// restart stops the server of a session and starts another as soon as the disk is writable. Streams and consumers
// continue with it.
func (v *supervisor) restart(failed *Session, reason string) {
	v.options.Logger.Error(errors.New(reason), "Restarting failed embedded NATS server", "directory", v.options.Dir)
	v.options.Restarts.Inc()
	v.sessions.fail(fmt.Errorf("%w: %s", ErrUnavailable, reason))
	v.sessions.use(nil)
	failed.end()
	for v.sessions.ctx.Err() == nil {
		var next *Session
		err := failed.rewriteUnsynced()
		if err == nil {
			next, err = v.startNext()
		}
		if err == nil {
			v.sessions.use(next)
			v.options.Logger.Info("Restarted embedded NATS server", "directory", v.options.Dir)
			return
		}
		v.sessions.fail(err)
		select {
		case <-v.sessions.ctx.Done():
		case <-time.After(restartInterval):
		}
	}
}

// startNext starts the server if the disk is writable. Its errors wrap ErrFull or ErrUnavailable.
func (v *supervisor) startNext() (*Session, error) {
	if err := checkWritable(v.options.Dir); err != nil {
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			return nil, fmt.Errorf("%w: %w", ErrFull, err)
		}
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if err := v.space.check(); err != nil {
		return nil, err
	}
	session, err := v.start()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if !session.Local {
		return session, nil
	}
	// Streams in the memory of the only server were lost with it.
	for _, config := range v.streams.matching(func(t trackedStream) bool { return t.config.Storage == jetstream.MemoryStorage }) {
		ctx, cancel := context.WithTimeout(v.sessions.ctx, startTimeout)
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

// serverLog is the embedded server's logger. It never ends the process.
type serverLog struct{ logr.Logger }

func (l serverLog) Noticef(format string, v ...any) { l.V(2).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Warnf(format string, v ...any)   { l.V(1).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Errorf(format string, v ...any)  { l.Error(nil, fmt.Sprintf(format, v...)) }
func (l serverLog) Fatalf(format string, v ...any)  { l.Error(nil, fmt.Sprintf(format, v...)) }
func (l serverLog) Debugf(format string, v ...any)  { l.V(4).Info(fmt.Sprintf(format, v...)) }
func (l serverLog) Tracef(format string, v ...any)  { l.V(5).Info(fmt.Sprintf(format, v...)) }

package eventlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connectTimeout bounds Open.
const connectTimeout = 10 * time.Second

// openExternal connects to the servers of the URL, and finds out whether their JetStream is what the log needs.
func (l *Log) openExternal(ctx context.Context) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	o := l.opts
	options := []nats.Option{
		nats.Name("knative-apiserver " + o.Installation),
		nats.Timeout(connectTimeout / 2),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		// Credentials that are refused now may be replaced.
		nats.IgnoreAuthErrorAbort(),
		// What cannot be sent now is not sent behind the back of who was told so.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				l.logger.Error(err, "Disconnected from NATS")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			l.logger.Info("Connected to NATS again", "server", nc.ConnectedUrlRedacted())
			l.renew()
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { l.logger.Error(err, "NATS connection") }),
	}
	if o.CredentialsFile != "" {
		options = append(options, nats.UserCredentials(o.CredentialsFile))
	}
	if o.CAFile != "" {
		options = append(options, nats.RootCAs(o.CAFile))
	}
	if o.CertFile != "" || o.KeyFile != "" {
		options = append(options, nats.ClientCert(o.CertFile, o.KeyFile))
	}
	nc, err := nats.Connect(o.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("event log: connect to NATS at %s: %w", o.URL, err)
	}
	s, err := newSession(nil, nc, false)
	if err == nil {
		err = l.try(ctx, s)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("event log: NATS at %s: %w", o.URL, err)
	}
	return s, nil
}

// renew begins a session on the connection there is: what waits for answers that were lost with the connection asks
// again.
func (l *Log) renew() {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.current.Load()
	if s == nil || l.ctx.Err() != nil {
		return
	}
	l.current.Store(&session{nc: s.nc, js: s.js, ended: make(chan struct{})})
	close(s.ended)
}

// try creates a stream as the log's are, and deletes it again, so that missing permissions, servers and features show
// at the start.
func (l *Log) try(ctx context.Context, s *session) error {
	config := l.config(StreamConfig{ID: "probe-" + nats.NewInbox()[len(nats.InboxPrefix):], Description: "tried at startup"})
	stream, err := s.js.CreateStream(ctx, config)
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("JetStream must be enabled: %w", err)
	case err != nil:
		return fmt.Errorf("create a stream of %d replicas: %w", l.opts.Replicas, err)
	}
	atomic := stream.CachedInfo().Config.AllowAtomicPublish
	if err := s.js.DeleteStream(ctx, config.Name); err != nil {
		return fmt.Errorf("delete stream '%s': %w", config.Name, err)
	}
	if !atomic {
		return errors.New("JetStream must have atomic batch publishing: server 2.12 or later")
	}
	return nil
}

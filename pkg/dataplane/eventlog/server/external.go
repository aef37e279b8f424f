package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// connectTimeout bounds Open.
const connectTimeout = 10 * time.Second

// Dialer connects to an address, as net.Dial does.
type Dialer func(network, address string) (net.Conn, error)

// Dial implements nats.CustomDialer.
func (d Dialer) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// connect connects to the servers of the URL, and checks that their JetStream has the features that the log needs. Each
// reconnection renews the session of current.
func connect(ctx context.Context, o Options, current *sessions) (*Session, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	options := []nats.Option{
		nats.Name("knative-apiserver " + o.Installation),
		nats.Timeout(connectTimeout / 2),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(250 * time.Millisecond),
		// Rejected credentials may be replaced.
		nats.IgnoreAuthErrorAbort(),
		// A message whose caller got an error is not sent later.
		nats.ReconnectBufSize(-1),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			if err != nil {
				o.Logger.Error(err, "Disconnected from NATS")
			}
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			o.Logger.Info("Reconnected to NATS", "server", nc.ConnectedUrlRedacted())
			current.renew()
		}),
		nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) { o.Logger.Error(err, "NATS connection failed") }),
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
	if o.Dial != nil {
		options = append(options, nats.SetCustomDialer(o.Dial))
	}
	nc, err := nats.Connect(o.URL, options...)
	if err != nil {
		return nil, fmt.Errorf("event log: connect to NATS at %s: %w", o.URL, err)
	}
	session, err := newSession(nc, nil, nil)
	if err == nil {
		err = probeStream(ctx, session, o.Probe)
	}
	if err != nil {
		nc.Close()
		return nil, fmt.Errorf("event log: NATS at %s: %w", o.URL, err)
	}
	return session, nil
}

// probeStream creates a stream like the log's and deletes it, to detect missing permissions, servers and features.
func probeStream(ctx context.Context, session *Session, config jetstream.StreamConfig) error {
	stream, err := session.JetStream.CreateStream(ctx, config)
	switch {
	case errors.Is(err, jetstream.ErrJetStreamNotEnabled), errors.Is(err, jetstream.ErrJetStreamNotEnabledForAccount),
		errors.Is(err, nats.ErrNoResponders):
		return fmt.Errorf("JetStream must be enabled: %w", err)
	case err != nil:
		return fmt.Errorf("create a stream of %d replicas: %w", config.Replicas, err)
	}
	atomic := stream.CachedInfo().Config.AllowAtomicPublish
	if err := session.JetStream.DeleteStream(ctx, config.Name); err != nil {
		return fmt.Errorf("delete stream '%s': %w", config.Name, err)
	}
	if !atomic {
		return errors.New("JetStream must have atomic batch publishing: server 2.12 or later")
	}
	return nil
}

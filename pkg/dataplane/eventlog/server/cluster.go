package eventlog

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// apiTimeout bounds what a cluster is asked for besides records.
const apiTimeout = 5 * time.Second

// Cluster has the embedded server be one of several, in as many processes, that hold each stream together. What they
// acknowledged is on the disks of most of them; a server that lost its store gets it from the others again.
type Cluster struct {
	// Name is the server's own for good, such as that of its pod in a StatefulSet.
	Name string
	// ListenHost and ListenPort are where it listens for the others, Advertise is where they reach it, host and port.
	ListenHost string
	ListenPort int
	Advertise  string
	// Routes are where all servers are reached, host and port, this one among them or not. Their number is that of the
	// servers, of which most must run, so it may not be less than there will be.
	Routes []string
	// TLS has the servers authenticate each other: it gives certificates for server and client, and says what to trust in
	// both roles, by ClientCAs and RootCAs or by VerifyConnection. Its functions are asked at each handshake.
	TLS *tls.Config
}

// clustered says whether the embedded server is one of several.
func (l *Log) clustered() bool { return l.embedded() && l.opts.Cluster != nil }

// validate says what is missing.
func (c *Cluster) validate() error {
	switch {
	case !names.MatchString(c.Name):
		return fmt.Errorf("server name '%s' must consist of letters, digits, '-' and '_'", c.Name)
	case c.TLS == nil, c.TLS.InsecureSkipVerify && c.TLS.VerifyConnection == nil:
		return errors.New("servers of a cluster must authenticate each other by TLS")
	}
	for _, address := range append([]string{c.Advertise}, c.Routes...) {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("address '%s' must be a host and a port: %w", address, err)
		}
	}
	if len(c.routes()) < 2 {
		return errors.New("a cluster must have two servers or more")
	}
	return nil
}

// routes are where all servers are, this one among them: the server counts them to know when most are there.
func (c *Cluster) routes() []*url.URL {
	all := slices.Clone(c.Routes)
	if !slices.Contains(all, c.Advertise) {
		all = append(all, c.Advertise)
	}
	urls := make([]*url.URL, 0, len(all))
	for _, address := range all {
		urls = append(urls, &url.URL{Scheme: "nats", Host: address})
	}
	return urls
}

// join makes a server's options those of one of a cluster, and returns the token that its clients need.
func (l *Log) join(o *server.Options) (token string) {
	c := l.opts.Cluster
	config := c.TLS.Clone()
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if config.VerifyConnection != nil {
		config.ClientAuth = tls.RequireAnyClientCert
	}
	token = rand.Text()
	o.ServerName = c.Name
	o.Cluster = server.ClusterOpts{
		Name: "knative-" + l.opts.Installation, Host: c.ListenHost, Port: c.ListenPort, Advertise: c.Advertise,
		TLSConfig: config, TLSTimeout: routeTimeout.Seconds(), NoAdvertise: true,
	}
	o.Routes = c.routes()
	// Only a server that listens for clients looks for the others. Nobody outside this process has the token.
	o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT
	o.Authorization = token
	// A server that forgets, after a loss of power, what it agreed to may have the others forget it as well. Each commit is
	// one entry of a log that is synced on most servers before it is acknowledged; that of removals is synced behind it.
	o.SyncAlways = true
	return token
}

// ensure creates a stream or gives it the configuration. Where too few servers are there to hold a new one, fewer do, at
// least two, until grow finds more.
func (l *Log) ensure(ctx context.Context, s *session, config jetstream.StreamConfig) (thin bool, err error) {
	if l.clustered() {
		// Without a leader nobody answers.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, apiTimeout)
		defer cancel()
	}
	_, err = s.js.CreateOrUpdateStream(ctx, config)
	if !l.clustered() || config.Replicas < 3 || !isAPI(err, server.JSClusterNoPeersErrF) {
		return false, err
	}
	config.Replicas = 2
	_, thinErr := s.js.CreateStream(ctx, config)
	switch {
	case thinErr == nil, errors.Is(thinErr, jetstream.ErrStreamNameAlreadyInUse):
		// One that is there keeps the servers it has.
		return true, nil
	default:
		return false, errors.Join(err, thinErr)
	}
}

// grow has as many servers hold the streams as should.
func (l *Log) grow(s *session) {
	for _, stream := range l.cached() {
		if !stream.thin.Load() || stream.deleted.Load() {
			continue
		}
		ctx, cancel := context.WithTimeout(l.ctx, apiTimeout)
		_, err := s.js.UpdateStream(ctx, l.config(stream.config))
		cancel()
		if err != nil {
			// The others lack the same servers.
			return
		}
		stream.thin.Store(false)
		l.logger.Info("All servers hold the stream now", "stream", stream.config.ID)
	}
}

func isAPI(err error, code server.ErrorIdentifier) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && server.ErrorIdentifier(api.ErrorCode) == code
}

// brokenGroups returns what the server of a cluster cannot write any more. Other faults of its streams, such as that they
// lag behind, the servers mend themselves.
func (s *session) brokenGroups() map[string]bool {
	found := map[string]bool{}
	status := s.server.Raftz(&server.RaftzOptions{AccountFilter: server.DEFAULT_SYSTEM_ACCOUNT})
	if status == nil {
		return found
	}
	for _, groups := range *status {
		for name, group := range groups {
			if group.WALError != nil {
				found["group "+name+": "+group.WALError.Error()] = true
			}
		}
	}
	return found
}

// Health returns what keeps the log from taking or handing out records; with a cluster, also that this server does not
// have yet what it should. It wraps ErrFull, ErrUnavailable or ErrClosed.
func (l *Log) Health(context.Context) error {
	if l.ctx.Err() != nil {
		return ErrClosed
	}
	if err := l.unusable(); err != nil {
		return err
	}
	s := l.current.Load()
	switch {
	case s == nil, !s.nc.IsConnected():
		return fmt.Errorf("%w: not connected to the server", ErrUnavailable)
	case l.clustered():
		if status := s.server.Healthz(nil); status.Error != "" {
			return fmt.Errorf("%w: %s", ErrUnavailable, status.Error)
		}
	}
	return nil
}

package server

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// ValidName reports whether a name consists of letters, digits, "-" and "_".
func ValidName(name string) bool { return names.MatchString(name) }

// Cluster makes the embedded server one of several, in as many processes, that replicate each stream. Acknowledged messages
// are on the disks of a majority; a server that lost its store recovers it from the others.
type Cluster struct {
	// Name identifies the server permanently, such as the name of its Pod in a StatefulSet.
	Name string
	// ListenHost and ListenPort are where it listens for the others, Advertise is where they reach it, host and port.
	ListenHost string
	ListenPort int
	Advertise  string
	// Routes are the addresses of all servers, host and port, with or without this one. A majority of them must run, so
	// none that will be started may be missing.
	Routes []string
	// TLS authenticates the servers to each other: it provides certificates for server and client, and trust in both
	// roles, by ClientCAs and RootCAs or by VerifyConnection. Its functions are called at each handshake.
	TLS *tls.Config
}

// Validate returns an error that names the missing or invalid setting.
func (c *Cluster) Validate() error {
	switch {
	case !ValidName(c.Name):
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

// routes are the addresses of all servers, including this one: the server derives the size of a majority from them.
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

// configure sets the server options of a server of the cluster, and returns the token that its clients need.
func (c *Cluster) configure(o *server.Options, installation string) (token string) {
	config := c.TLS.Clone()
	config.ClientAuth = tls.RequireAndVerifyClientCert
	if config.VerifyConnection != nil {
		config.ClientAuth = tls.RequireAnyClientCert
	}
	token = rand.Text()
	o.ServerName = c.Name
	o.Cluster = server.ClusterOpts{
		Name: "knative-" + installation, Host: c.ListenHost, Port: c.ListenPort, Advertise: c.Advertise,
		TLSConfig: config, TLSTimeout: routeTimeout.Seconds(), NoAdvertise: true,
	}
	o.Routes = c.routes()
	// Only a server that listens for clients connects to the others. The token never leaves this process.
	o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT
	o.Authorization = token
	// A server that loses an agreed write in a power failure may make the others lose it as well. Each commit is
	// one entry of a log that is synced on most servers before it is acknowledged; removals are synced later.
	o.SyncAlways = true
	return token
}

// EnsureStream creates a stream, or updates its configuration. With too few servers for a new stream's replicas, fewer
// servers hold it, at least two, and it is under-replicated: pass that to Track.
func (s *Session) EnsureStream(ctx context.Context, config jetstream.StreamConfig) (underReplicated bool, err error) {
	if s.clustered() {
		// Without a leader no server responds.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, APITimeout)
		defer cancel()
	}
	_, err = s.JetStream.CreateOrUpdateStream(ctx, config)
	if !s.clustered() || config.Replicas < 3 || !isAPI(err, server.JSClusterNoPeersErrF) {
		return false, err
	}
	config.Replicas = 2
	_, fewerErr := s.JetStream.CreateStream(ctx, config)
	switch {
	case fewerErr == nil, errors.Is(fewerErr, jetstream.ErrStreamNameAlreadyInUse):
		// An existing one keeps its servers.
		return true, nil
	default:
		return false, errors.Join(err, fewerErr)
	}
}

// trackedStream is a stream that this process uses.
type trackedStream struct {
	config          jetstream.StreamConfig
	underReplicated bool
}

// Track maintains a stream: after a restart of the embedded server it is created again if it was in memory, and an
// under-replicated stream gets the replicas of config when enough servers run.
func (s *Server) Track(config jetstream.StreamConfig, underReplicated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracked[config.Name] = trackedStream{config: config, underReplicated: underReplicated}
}

// Untrack ends Track.
func (s *Server) Untrack(stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tracked, stream)
}

// trackedStreams returns the configurations of tracked streams that match.
func (s *Server) trackedStreams(match func(trackedStream) bool) []jetstream.StreamConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []jetstream.StreamConfig
	for _, stream := range s.tracked {
		if match(stream) {
			found = append(found, stream.config)
		}
	}
	return found
}

// replicate adds the missing replicas of under-replicated streams.
func (s *Server) replicate(session *Session) {
	for _, config := range s.trackedStreams(func(t trackedStream) bool { return t.underReplicated }) {
		ctx, cancel := context.WithTimeout(s.ctx, APITimeout)
		_, err := session.JetStream.UpdateStream(ctx, config)
		cancel()
		if err != nil {
			// The others lack the same servers.
			return
		}
		s.mu.Lock()
		if stream, found := s.tracked[config.Name]; found {
			stream.underReplicated = false
			s.tracked[config.Name] = stream
		}
		s.mu.Unlock()
		s.logger.Info("Stream is replicated to all servers", "stream", config.Name)
	}
}

// brokenGroups returns what the server of a cluster cannot write any more. The servers repair other faults of their
// streams, such as lag, themselves.
func (s *Session) brokenGroups() map[string]bool {
	found := map[string]bool{}
	status := s.Embedded.Raftz(&server.RaftzOptions{AccountFilter: server.DEFAULT_SYSTEM_ACCOUNT})
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

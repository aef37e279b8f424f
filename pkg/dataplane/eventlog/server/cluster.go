package server

import (
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"slices"

	"github.com/nats-io/nats-server/v2/server"
)

var names = regexp.MustCompile(`^[A-Za-z0-9_-]{1,128}$`)

// ValidName reports whether a name consists of letters, digits, "-" and "_".
func ValidName(name string) bool { return names.MatchString(name) }

// Cluster makes the embedded server one of several, in as many processes, that replicate each stream. Acknowledged messages
// are on the disks of a majority; a server that lost its store recovers it from the others.
type Cluster struct {
	// Name identifies the server permanently, such as the name of its Pod in a StatefulSet.
	Name string
	// ListenHost and ListenPort are the address at which it listens for the others, Advertise is the host and port at which they reach it.
	ListenHost string
	ListenPort int
	Advertise  string
	// Routes are the addresses of all servers, host and port, with or without this one. A majority of them must run, so the list must be complete.
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
	// Lost routes are tried again every second: an absent server is logged once a minute.
	o.ReconnectErrorReports = 60
	// Only a server that listens for clients connects to the others. The token never leaves this process.
	o.DontListen, o.Host, o.Port = false, "127.0.0.1", server.RANDOM_PORT
	o.Authorization = token
	// A server that loses an agreed write in a power failure may make the others lose it as well. Each commit is
	// one entry of a log that is synced on most servers before it is acknowledged; removals are synced later.
	o.SyncAlways = true
	return token
}

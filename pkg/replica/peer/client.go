package peer

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

const (
	// dialTimeout is how long a replica may take to be reached: it is near.
	dialTimeout = time.Second
	// quietFor is how long a connection with requests may bring nothing before it is asked for a sign, which it has
	// signTimeout for: a machine that is gone says nothing.
	quietFor, signTimeout = 3 * time.Second, 2 * time.Second
)

// Client sends requests to other replicas: the host of their URLs is a Member's address, the scheme does not matter. It
// fails with an error that IsUnreachable is true for where nothing of a request was sent.
type Client struct {
	// multiplexed is for all requests but those that change the protocol of their connection.
	multiplexed, upgrades *http.Transport
}

var _ http.RoundTripper = (*Client)(nil)

// NewClient returns a client that presents the certificate of a configuration, and talks to who has one of its RootCAs for
// ServerName. A configuration that checks by VerifyConnection finds that name in the connection's state.
func NewClient(config *tls.Config) *Client {
	transport := func(protocols *http.Protocols) *http.Transport {
		config := config.Clone()
		config.ServerName, config.MinVersion, config.NextProtos = ServerName, tls.VersionTLS13, nil
		return &http.Transport{
			TLSClientConfig: config, Protocols: protocols,
			DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 2 * dialTimeout, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 16,
			// Requests are passed on as they are.
			DisableCompression:     true,
			MaxResponseHeaderBytes: maxHeaderBytes,
			HTTP2: &http.HTTP2Config{
				SendPingTimeout: quietFor, PingTimeout: signTimeout,
				MaxReceiveBufferPerConnection: windowPerConnection, MaxReceiveBufferPerStream: windowPerStream,
			},
		}
	}
	multiplexed, upgrades := new(http.Protocols), new(http.Protocols)
	multiplexed.SetHTTP2(true)
	upgrades.SetHTTP1(true)
	return &Client{multiplexed: transport(multiplexed), upgrades: transport(upgrades)}
}

// RoundTrip implements http.RoundTripper.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	u := *r.URL
	u.Scheme = "https"
	sent := r.WithContext(r.Context())
	sent.URL = &u
	if r.Header.Get("Upgrade") != "" {
		return c.upgrades.RoundTrip(sent)
	}
	return c.multiplexed.RoundTrip(sent)
}

// CloseIdleConnections closes the connections that no request uses, such as for new certificates.
func (c *Client) CloseIdleConnections() {
	c.multiplexed.CloseIdleConnections()
	c.upgrades.CloseIdleConnections()
}

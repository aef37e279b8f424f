package peer

import (
	"crypto/tls"
	"net"
	"net/http"
	"time"
)

const (
	// dialTimeout bounds the time of a connection within one cluster.
	dialTimeout = time.Second
	// quietFor is the time that a connection with requests may be silent before a ping, and signTimeout bounds the response: a
	// failed machine does not close its connections.
	quietFor, signTimeout = 3 * time.Second, 2 * time.Second
)

// Client sends requests to other replicas: the host of their URLs is a Member's address, the scheme does not matter. If no part
// of a request was sent, IsUnreachable is true for its error.
type Client struct {
	// upgrades is for requests that change the protocol of their connection, multiplexed for all others.
	multiplexed, upgrades *http.Transport
}

var _ http.RoundTripper = (*Client)(nil)

// NewClient returns a client that presents the certificate of config, and accepts servers with a certificate of its RootCAs for
// ServerName. VerifyConnection finds that name in the connection's state.
func NewClient(config *tls.Config) *Client {
	transport := func(protocols *http.Protocols) *http.Transport {
		config := config.Clone()
		config.ServerName, config.MinVersion, config.NextProtos = ServerName, tls.VersionTLS13, nil
		return &http.Transport{
			TLSClientConfig: config, Protocols: protocols,
			DialContext:         (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
			TLSHandshakeTimeout: 2 * dialTimeout, IdleConnTimeout: idleTimeout, MaxIdleConnsPerHost: 16,
			// Requests are forwarded unchanged.
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

// CloseIdleConnections closes the connections without requests, for example after a change of certificates.
func (c *Client) CloseIdleConnections() {
	c.multiplexed.CloseIdleConnections()
	c.upgrades.CloseIdleConnections()
}

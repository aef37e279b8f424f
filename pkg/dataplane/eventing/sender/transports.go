package sender

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/utils/lru"
)

const (
	// DialTimeout bounds the time to connect to an endpoint.
	DialTimeout = 10 * time.Second
	// keepIdle is the time for which idle connections are kept: less than the 5 s after which common servers close theirs.
	keepIdle = 4 * time.Second
	// maxIdle is the number of idle connections to one host: about as many as may be in use.
	maxIdle = 512
	// maxHeader bounds the header of an answer: more than an event in binary mode takes.
	maxHeader = 256 << 10
	// maxBundles bounds how many bundles of certificates have their own connections.
	maxBundles = 128
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// transports keep the connections to endpoints. They use no proxy: most endpoints are in the cluster or on this
// machine.
type transports struct {
	plain  *plain
	secure *http.Transport
	// trusting has a transport for each bundle of certificates that endpoints ask to trust.
	trusting *lru.Cache
}

func newTransports(dial dialer) *transports {
	if dial == nil {
		dial = (&net.Dialer{Timeout: DialTimeout}).DialContext
	}
	secure := &http.Transport{
		DialContext:            dial.local,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        keepIdle,
		TLSHandshakeTimeout:    DialTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	secure.Protocols.SetHTTP1(true)
	secure.Protocols.SetHTTP2(true)
	t := &transports{plain: &plain{dial: dial, idle: map[string][]*conn{}}, secure: secure}
	t.trusting = lru.NewWithEvictionFunc(maxBundles, func(_ lru.Key, value any) {
		value.(*http.Transport).CloseIdleConnections()
	})
	return t
}

// of returns the transport to a URL, which trusts certificates in PEM besides the system's.
func (t *transports) of(target *url.URL, certificates string) (http.RoundTripper, error) {
	switch {
	case target.Scheme == "http":
		return t.plain, nil
	case certificates == "":
		return watching{t.secure}, nil
	}
	if have, ok := t.trusting.Get(certificates); ok {
		return watching{have.(*http.Transport)}, nil
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the certificates of the system cannot be read: %w", err)
	}
	if !pool.AppendCertsFromPEM([]byte(certificates)) {
		return nil, errors.New("the CA certificates of the endpoint hold no certificate in PEM")
	}
	made := t.secure.Clone()
	made.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	t.trusting.Add(certificates, made)
	return watching{made}, nil
}

func (t *transports) close() {
	t.plain.close()
	t.secure.CloseIdleConnections()
	t.trusting.Clear()
}

// local dials localhost and all names below it on this machine (RFC 6761, 6.3). Services of this machine have such
// names, which few resolvers know.
func (d dialer) local(ctx context.Context, network, address string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil || !isLocal(host) {
		return d(ctx, network, address)
	}
	conn, err := d(ctx, network, net.JoinHostPort("127.0.0.1", port))
	if err == nil {
		return conn, nil
	}
	if conn, err := d(ctx, network, net.JoinHostPort("::1", port)); err == nil {
		return conn, nil
	}
	return nil, err
}

func isLocal(host string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}

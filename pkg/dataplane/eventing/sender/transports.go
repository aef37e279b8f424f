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
	"sync/atomic"
	"time"

	"k8s.io/utils/lru"
)

const (
	// DialTimeout bounds the time to connect to an endpoint.
	DialTimeout = 10 * time.Second
	// keepIdle is the time for which idle connections are kept: less than the 5 s after which common servers close theirs.
	keepIdle = 4 * time.Second
	// sweepInterval is the least time between two searches for connections that were idle for keepIdle.
	sweepInterval = keepIdle / 8
	// maxIdle is the number of idle connections to one host: as many as a namespace may use at a time.
	maxIdle = 1024
	// maxHeader bounds the header of an answer: more than an event in binary mode takes.
	maxHeader = 256 << 10
	// maxBundles bounds the number of bundles of certificates that have their own connections.
	maxBundles = 128
)

type dialer func(ctx context.Context, network, address string) (net.Conn, error)

// transports keep the connections to endpoints. They use no proxy: most endpoints are in the cluster or on this
// machine.
type transports struct {
	plain *plain
	// template is the configuration of transports with TLS.
	template *http.Transport
	// secure has the connections with TLS. Trusting other certificates replaces it.
	secure atomic.Pointer[secure]
}

// secure keeps the connections with TLS that trust the same certificates of the operator.
type secure struct {
	// trusted are certificates in PEM to trust besides the system's, standard is the transport that trusts no others.
	trusted  []byte
	standard *http.Transport
	// trusting has a transport for each bundle of certificates of endpoints.
	trusting *lru.Cache
}

func newTransports(dial dialer) *transports {
	if dial == nil {
		dial = (&net.Dialer{Timeout: DialTimeout}).DialContext
	}
	template := &http.Transport{
		DialContext:            dial.local,
		DisableCompression:     true,
		MaxIdleConnsPerHost:    maxIdle,
		IdleConnTimeout:        keepIdle,
		TLSHandshakeTimeout:    DialTimeout,
		MaxResponseHeaderBytes: maxHeader,
		Protocols:              new(http.Protocols),
	}
	template.Protocols.SetHTTP1(true)
	template.Protocols.SetHTTP2(true)
	t := &transports{plain: &plain{dial: dial, idle: map[string][]*conn{}}, template: template}
	t.secure.Store(t.newSecure(nil, template.Clone()))
	return t
}

func (t *transports) newSecure(trusted []byte, standard *http.Transport) *secure {
	return &secure{trusted: trusted, standard: standard, trusting: lru.NewWithEvictionFunc(maxBundles, func(_ lru.Key, value any) {
		value.(*http.Transport).CloseIdleConnections()
	})}
}

// trust makes new connections trust certificates in PEM besides the system's. In-flight requests continue.
func (t *transports) trust(trusted []byte) error {
	standard := t.template.Clone()
	if len(trusted) > 0 {
		var err error
		if standard, err = t.trusting(trusted, ""); err != nil {
			return err
		}
	}
	t.secure.Swap(t.newSecure(trusted, standard)).close()
	return nil
}

// trusting returns a transport that trusts certificates in PEM, of the operator and of an endpoint, besides the system's.
func (t *transports) trusting(trusted []byte, certificates string) (*http.Transport, error) {
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, fmt.Errorf("the certificates of the system cannot be read: %w", err)
	}
	pool.AppendCertsFromPEM(trusted)
	if certificates != "" && !pool.AppendCertsFromPEM([]byte(certificates)) {
		return nil, errors.New("the CA certificates of the endpoint hold no certificate in PEM")
	}
	made := t.template.Clone()
	made.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return made, nil
}

// of returns the transport to a URL, which trusts certificates in PEM besides the system's and the operator's.
func (t *transports) of(target *url.URL, certificates string) (http.RoundTripper, error) {
	switch {
	case target.Scheme == "http":
		return t.plain, nil
	case certificates == "":
		return watching{t.secure.Load().standard}, nil
	}
	s := t.secure.Load()
	if have, ok := s.trusting.Get(certificates); ok {
		return watching{have.(*http.Transport)}, nil
	}
	made, err := t.trusting(s.trusted, certificates)
	if err != nil {
		return nil, err
	}
	s.trusting.Add(certificates, made)
	return watching{made}, nil
}

func (t *transports) close() {
	t.plain.close()
	t.secure.Load().close()
}

// close closes idle connections.
func (s *secure) close() {
	s.standard.CloseIdleConnections()
	s.trusting.Clear()
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

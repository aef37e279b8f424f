package acmecerts

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
)

// maxResponse bounds the bytes of a response of the ACME server.
const maxResponse = 1 << 20

// transport returns the transport to the ACME server. It needs no egress.Guard, because the operator configures the address, not a tenant.
func transport(config Config) (http.RoundTripper, error) {
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if config.Bundle != "" {
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM([]byte(config.Bundle)) {
			return nil, errors.New("acme-ca-bundle of config-network must have certificates in PEM")
		}
	}
	return &bounded{&http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: (&net.Dialer{Timeout: requestTimeout}).DialContext, TLSClientConfig: t,
		TLSHandshakeTimeout: requestTimeout, IdleConnTimeout: requestTimeout, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: maxOrders,
	}}, nil
}

// bounded bounds the size of responses.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b *bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	response.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(response.Body, maxResponse), response.Body}
	return response, nil
}

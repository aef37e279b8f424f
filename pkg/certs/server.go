package certs

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// ServerCertificate is the certificate of a TLS server with fixed names. The first handshake issues it, and the first one after it is
// due for renewal, or after the authority has another signer, replaces it. It is safe for concurrent use.
type ServerCertificate struct {
	issue   func() (*HostCertificate, error)
	current func(*HostCertificate) bool

	// mu is held while a certificate is issued.
	mu   sync.Mutex
	held atomic.Pointer[HostCertificate]
}

// ServerCertificate returns the certificate of a server with at least one DNS name.
func (m *Manager) ServerCertificate(dns ...string) *ServerCertificate {
	who := names{dns: dns, usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	return &ServerCertificate{
		issue: func() (*HostCertificate, error) {
			held := m.current.Load()
			if held == nil {
				return nil, ErrNotIssued
			}
			return held.signer.issueFor(who, m.options.LeafValidity, m.options.Clock.Now())
		},
		current: func(c *HostCertificate) bool {
			held := m.current.Load()
			return held == nil || held.signer.cert.Equal(c.signer) && m.options.Clock.Now().Before(c.Renew)
		},
	}
}

// ServerCertificate returns the certificate of a server with addresses and at least one DNS name.
func (a *HostAuthority) ServerCertificate(ips []net.IP, dns ...string) *ServerCertificate {
	who := names{dns: dns, ips: ips, usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	return &ServerCertificate{issue: func() (*HostCertificate, error) { return a.issue(who) }, current: a.Current}
}

// TLS returns the configuration of the server. It has no sessions to resume, so that no client depends on the certificate of an authority
// that is no longer trusted.
func (c *ServerCertificate) TLS() *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS12,
		SessionTicketsDisabled: true,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			held, err := c.get()
			if err != nil {
				return nil, err
			}
			return held.TLS, nil
		},
	}
}

// get returns the current certificate.
func (c *ServerCertificate) get() (*HostCertificate, error) {
	if held := c.held.Load(); held != nil && c.current(held) {
		return held, nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	held := c.held.Load()
	if held != nil && c.current(held) {
		return held, nil
	}
	issued, err := c.issue()
	if err != nil {
		return nil, err
	}
	c.held.Store(issued)
	return issued, nil
}

// issueFor signs a certificate like sign, with a new key.
func (a *authority) issueFor(who names, validity time.Duration, now time.Time) (*HostCertificate, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	der, expires, err := a.sign(who, validity, key, now)
	if err != nil {
		return nil, err
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse certificate of %q: %w", who.dns[0], err)
	}
	return &HostCertificate{
		TLS:    &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: parsed},
		Renew:  renewal(now, expires),
		signer: a.cert,
	}, nil
}

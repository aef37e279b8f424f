package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"
)

// ErrNotIssued is the error of TLS handshakes before Start has returned.
var ErrNotIssued = errors.New("no certificate has been issued yet")

// PeerTLS returns the TLS configuration for both ends of connections between replicas. Each end presents its certificate
// and accepts certificates for PeerName, or one of the other names, that a currently trusted authority signed, from any address. A
// clone may set ServerName and NextProtos. Renewals and rotations take effect at the next handshake.
func (m *Manager) PeerTLS(others ...string) *tls.Config {
	return peerTLS(m.options.Clock.Now, func() *identity {
		held := m.current.Load()
		if held == nil {
			return nil
		}
		return &identity{certificate: held.peer.tls, trusted: held.trusted}
	}, append([]string{PeerName}, others...))
}

// identity is a certificate for both ends of connections between replicas, with the authorities to trust. Immutable.
type identity struct {
	certificate *tls.Certificate
	trusted     *x509.CertPool
}

// peerTLS returns the TLS configuration of a replica that accepts certificates for names. current returns nil before there is a
// certificate.
func peerTLS(now func() time.Time, current func() *identity, names []string) *tls.Config {
	certificate := func() (*tls.Certificate, error) {
		held := current()
		if held == nil {
			return nil, ErrNotIssued
		}
		return held.certificate, nil
	}
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		Time:                 now,
		GetCertificate:       func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() },
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() },
		// A resumed session could contain a certificate that is no longer accepted, and fail.
		SessionTicketsDisabled: true,
		// VerifyConnection performs the verification at both ends with the current authorities. The default verification
		// would use the authorities at the time the configuration was created.
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true,
		VerifyConnection: func(connection tls.ConnectionState) error {
			return verifyPeer(connection, current(), now(), names)
		},
	}
}

// verifyPeer verifies the certificate of another replica. The serving certificate of the API has another name and is rejected.
func verifyPeer(connection tls.ConnectionState, held *identity, now time.Time, names []string) error {
	if held == nil {
		return ErrNotIssued
	}
	if len(connection.PeerCertificates) == 0 {
		return errors.New("peer presented no certificate")
	}
	certificate := connection.PeerCertificates[0]
	if !slices.ContainsFunc(names, func(name string) bool { return certificate.VerifyHostname(name) == nil }) {
		return fmt.Errorf("verify peer certificate: it is for %v, not for %v", certificate.DNSNames, names)
	}
	_, err := certificate.Verify(x509.VerifyOptions{Roots: held.trusted, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return fmt.Errorf("verify peer certificate: %w", err)
	}
	return nil
}

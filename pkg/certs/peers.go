package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// ErrNotIssued is the error of TLS handshakes before Start has returned.
var ErrNotIssued = errors.New("no certificate has been issued yet")

// PeerTLS returns the TLS configuration for both ends of connections between replicas. Each end presents its certificate
// and accepts certificates for PeerName that a currently trusted authority signed, from any address. A clone may set
// ServerName and NextProtos. Renewals and rotations take effect at the next handshake.
func (m *Manager) PeerTLS() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13,
		Time:       m.options.Clock.Now,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return m.peerCertificate()
		},
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return m.peerCertificate()
		},
		// A resumed session could contain a certificate that is no longer accepted, and fail.
		SessionTicketsDisabled: true,
		// VerifyConnection performs the verification at both ends with the current authorities. The default verification
		// would use the authorities at the time the configuration was created.
		ClientAuth:         tls.RequireAnyClientCert,
		InsecureSkipVerify: true,
		VerifyConnection:   m.verifyPeer,
	}
}

func (m *Manager) peerCertificate() (*tls.Certificate, error) {
	held := m.current.Load()
	if held == nil {
		return nil, ErrNotIssued
	}
	return held.peer.tls, nil
}

// verifyPeer verifies the certificate of another replica. The serving certificate of the API has another name and is rejected.
func (m *Manager) verifyPeer(connection tls.ConnectionState) error {
	held := m.current.Load()
	if held == nil {
		return ErrNotIssued
	}
	if len(connection.PeerCertificates) == 0 {
		return errors.New("peer presented no certificate")
	}
	_, err := connection.PeerCertificates[0].Verify(x509.VerifyOptions{
		DNSName:     PeerName,
		Roots:       held.trusted,
		CurrentTime: m.options.Clock.Now(),
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("verify peer certificate: %w", err)
	}
	return nil
}

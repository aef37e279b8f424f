package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
)

// ErrNotIssued is why a connection was refused before Start had returned.
var ErrNotIssued = errors.New("no certificate has been issued yet")

// PeerTLS returns the configuration of connections between replicas, for both their ends. Each shows its certificate,
// and accepts those for PeerName that an authority of the time being has signed, at whatever address: a clone may set
// ServerName and NextProtos as it likes. Renewals and rotations take effect at the next handshake.
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
		// A resumed connection could show a certificate that is not accepted any more, and fail by that.
		SessionTicketsDisabled: true,
		// VerifyConnection does it all, at both ends, against the authorities of the moment: what the library does
		// by itself uses those of the moment that the configuration was made.
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

// verifyPeer accepts another replica. That of the API alone has another name, and is no replica's for this.
func (m *Manager) verifyPeer(connection tls.ConnectionState) error {
	held := m.current.Load()
	if held == nil {
		return ErrNotIssued
	}
	if len(connection.PeerCertificates) == 0 {
		return errors.New("the other side has no certificate, as replicas have")
	}
	_, err := connection.PeerCertificates[0].Verify(x509.VerifyOptions{
		DNSName:     PeerName,
		Roots:       held.trusted,
		CurrentTime: m.options.Clock.Now(),
		KeyUsages:   []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("the other side is no replica of this server: %w", err)
	}
	return nil
}

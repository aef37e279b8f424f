package hostcerts

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// maxChallenge bounds the bytes of the token and of the response of a challenge.
const maxChallenge = 4 << 10

// challengeValidity is the validity of the certificate of a challenge, which ends earlier.
const challengeValidity = 24 * time.Hour

// acmeIdentifier is the extension of a certificate that answers a challenge by TLS-ALPN-01 (RFC 8737 6.1).
var acmeIdentifier = asn1.ObjectIdentifier{1, 3, 6, 1, 5, 5, 7, 1, 31}

// provideACME provides the certificate and the challenge of a host name from the ACME server. mu must be held.
func (p *Provisioner) provideACME(name string, h *host) {
	if p.options.ACME == nil {
		h.problem, h.failed = "this server has no ACME client", true
		return
	}
	p.options.ACME.Require(name, h.claim.Key.Namespace)
	certificate, state := p.options.ACME.Certificate(name)
	p.answer(name, h, p.options.ACME.Challenge(name))
	if certificate != nil {
		h.certificate, h.issued, h.external = certificate, nil, false
		h.outdated = state.Outdated
	} else {
		// A certificate of another class remains until the first one arrives.
		h.outdated = h.certificate != nil
	}
	h.problem, h.failed = state.Problem, state.Failed
}

// withdraw ends orders and challenges of a host name. mu must be held.
func (p *Provisioner) withdraw(name string, h *host) {
	if h.claim.acme && p.options.ACME != nil {
		p.options.ACME.Release(name)
		p.answer(name, h, nil)
	}
}

// answer makes the gateway of this replica answer a challenge, or none if it is nil. mu must be held.
func (p *Provisioner) answer(name string, h *host, c *Challenge) {
	if sameChallenge(h.challenge, c) {
		return
	}
	if err := answer(p.options.Store, name, c, p.options.Clock.Now()); err != nil {
		p.options.Logger.Error(err, "Failed to answer ACME challenge", "host", name)
	}
	h.challenge = c
}

// follow provides the certificates of host names after a change of the ACME server's.
func (p *Provisioner) follow(names []string) {
	var owners []Owner
	p.mu.Lock()
	for _, name := range names {
		h := p.hosts[name]
		if h == nil || !h.claim.acme {
			continue
		}
		before := h.state()
		p.update([]string{name})
		if h.state() != before {
			owners = append(owners, p.claims.owners(name)...)
		}
	}
	p.mu.Unlock()
	p.notify(owners)
	p.measure()
}

// sameChallenge reports whether two challenges are the same, or both nil.
func sameChallenge(a, b *Challenge) bool {
	return a == b || a != nil && b != nil && *a == *b
}

// answer makes a gateway answer a challenge, or none if it is nil.
func answer(store Store, host string, c *Challenge, now time.Time) error {
	var certificate *tls.Certificate
	var token, response string
	var err error
	switch {
	case c == nil:
	case c.Token == "" || len(c.Token) > maxChallenge || len(c.Response) > maxChallenge:
		err = errors.New("the challenge is invalid")
	case c.TLS:
		certificate, err = challengeCertificate(host, c.Response, now)
	default:
		token, response = c.Token, c.Response
	}
	store.SetHTTPChallenge(host, token, response)
	store.SetTLSChallenge(host, certificate)
	return err
}

// challengeCertificate returns the certificate that answers a challenge by TLS-ALPN-01 (RFC 8737 3).
func challengeCertificate(host, response string, now time.Time) (*tls.Certificate, error) {
	digest := sha256.Sum256([]byte(response))
	value, err := asn1.Marshal(digest[:])
	if err != nil {
		return nil, fmt.Errorf("encode challenge: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ACME challenge"}, DNSNames: []string{host},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(challengeValidity),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
		ExtraExtensions: []pkix.Extension{{Id: acmeIdentifier, Critical: true, Value: value}},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create certificate of a challenge: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

package certs

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// backdating is the time between a certificate's NotBefore and its creation, to tolerate clients with a slow clock.
const backdating = 5 * time.Minute

// maxCommonName is the largest length of a common name (RFC 5280, ub-common-name).
const maxCommonName = 64

// authority is a certificate authority with its key, in memory and in PEM.
type authority struct {
	cert            *x509.Certificate
	key             crypto.Signer
	certPEM, keyPEM []byte
}

// newAuthority creates an authority called name that is valid for validity from now on.
func newAuthority(name string, validity time.Duration, now time.Time) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create key of authority %q: %w", name, err)
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-backdating),
		NotAfter:              now.Add(validity),
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("create certificate of authority %q: %w", name, err)
	}
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return nil, fmt.Errorf("encode key of authority %q: %w", name, err)
	}
	return parseAuthority(pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}), keyPEM)
}

// parseAuthority parses an authority with one certificate and its key.
func parseAuthority(certPEM, keyPEM []byte) (*authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, err
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok {
		return nil, errors.New("key does not implement crypto.Signer")
	}
	if !pair.Leaf.IsCA {
		return nil, fmt.Errorf("certificate of %q is not a CA certificate", pair.Leaf.Subject)
	}
	return &authority{cert: pair.Leaf, key: key, certPEM: certPEM, keyPEM: keyPEM}, nil
}

// renewal returns the time to replace an authority: after two thirds of its validity.
func (a *authority) renewal() time.Time {
	return renewal(a.cert.NotBefore.Add(backdating), a.cert.NotAfter)
}

// expired reports whether certificates signed by a are no longer accepted.
func (a *authority) expired(now time.Time) bool { return !now.Before(a.cert.NotAfter) }

// renewal returns the time after two thirds of the period from issued to expires.
func renewal(issued, expires time.Time) time.Time {
	return issued.Add(expires.Sub(issued) * 2 / 3)
}

// leaf is a certificate of this replica with its key.
type leaf struct {
	tls             *tls.Certificate
	certPEM, keyPEM []byte
	// renew is the time to replace it.
	renew time.Time
}

// names are the subject and usages of a certificate.
type names struct {
	dns    []string
	ips    []net.IP
	usages []x509.ExtKeyUsage
}

// sign signs a certificate for who, which is valid for validity, but not longer than the authority itself. The first DNS name becomes
// its common name, if that may be so long. It returns the certificate in DER and its expiry time.
func (a *authority) sign(who names, validity time.Duration, key *ecdsa.PrivateKey, now time.Time) (der []byte, expires time.Time, err error) {
	expires = now.Add(validity)
	if a.cert.NotAfter.Before(expires) {
		expires = a.cert.NotAfter
	}
	template := &x509.Certificate{
		NotBefore:             now.Add(-backdating),
		NotAfter:              expires,
		DNSNames:              who.dns,
		IPAddresses:           who.ips,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           who.usages,
	}
	if len(who.dns[0]) <= maxCommonName {
		template.Subject.CommonName = who.dns[0]
	}
	if der, err = x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key); err != nil {
		return nil, time.Time{}, fmt.Errorf("issue certificate to %q: %w", who.dns[0], err)
	}
	return der, expires, nil
}

// issue signs a certificate like sign, and encodes it.
func (a *authority) issue(who names, validity time.Duration, key *ecdsa.PrivateKey, now time.Time) (*leaf, error) {
	der, expires, err := a.sign(who, validity, key, now)
	if err != nil {
		return nil, err
	}
	l := &leaf{
		certPEM: pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der}),
		renew:   renewal(now, expires),
	}
	if l.keyPEM, err = keyutil.MarshalPrivateKeyToPEM(key); err != nil {
		return nil, fmt.Errorf("encode key of %q: %w", who.dns[0], err)
	}
	pair, err := tls.X509KeyPair(l.certPEM, l.keyPEM)
	if err != nil {
		return nil, fmt.Errorf("parse certificate of %q: %w", who.dns[0], err)
	}
	l.tls = &pair
	return l, nil
}

// newKey creates the private key of a leaf.
func newKey() (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("create private key: %w", err)
	}
	return key, nil
}

// encode returns certificates in PEM, concatenated.
func encode(certificates []*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certificates {
		b.Write(pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: c.Raw}))
	}
	return b.Bytes()
}

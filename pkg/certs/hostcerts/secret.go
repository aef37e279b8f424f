package hostcerts

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxChain and maxKey bound the bytes of a certificate with its chain, and of its key, in PEM.
	maxChain, maxKey = 64 << 10, 16 << 10
	// minRSA and maxRSA bound the length of RSA keys in bits: the time of a handshake grows with its third power.
	minRSA, maxRSA = 2048, 4096
)

// reduced returns the parts of a Secret that parseSecret reads, with one byte more than it accepts. A Secret may be much larger, and stays in
// memory while its certificate is requested.
func reduced(secret *corev1.Secret) *corev1.Secret {
	kept := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{ResourceVersion: secret.ResourceVersion}, Type: secret.Type}
	if secret.Type != corev1.SecretTypeTLS {
		return kept
	}
	part := func(key string, limit int) []byte {
		value := secret.Data[key]
		return bytes.Clone(value[:min(len(value), limit+1)])
	}
	kept.Data = map[string][]byte{
		corev1.TLSCertKey: part(corev1.TLSCertKey, maxChain), corev1.TLSPrivateKeyKey: part(corev1.TLSPrivateKeyKey, maxKey),
	}
	return kept
}

// parseSecret returns the certificate in a Secret, if a gateway may serve it for a host name.
func parseSecret(secret *corev1.Secret, host string, now time.Time) (*tls.Certificate, error) {
	chain, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	switch {
	case secret.Type != corev1.SecretTypeTLS:
		return nil, fmt.Errorf("its type must be %s, not %q", corev1.SecretTypeTLS, secret.Type)
	case len(chain) == 0 || len(key) == 0:
		return nil, fmt.Errorf("it must have the keys %s and %s", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	case len(chain) > maxChain || len(key) > maxKey:
		return nil, fmt.Errorf("%s may have at most %d bytes, and %s %d", corev1.TLSCertKey, maxChain, corev1.TLSPrivateKeyKey, maxKey)
	}
	certificate, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, fmt.Errorf("%s and %s must be a certificate and its key in PEM: %w", corev1.TLSCertKey, corev1.TLSPrivateKeyKey, err)
	}
	if err := checkKey(certificate.Leaf); err != nil {
		return nil, err
	}
	if err := certificate.Leaf.VerifyHostname(host); err != nil {
		return nil, fmt.Errorf("its certificate must be for the host name: %w", err)
	}
	if err := checkTime(certificate.Leaf, now); err != nil {
		return nil, err
	}
	return &certificate, nil
}

// checkKey returns an error for keys that are too weak, or take a gateway too long.
func checkKey(leaf *x509.Certificate) error {
	switch key := leaf.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < minRSA || bits > maxRSA {
			return fmt.Errorf("an RSA key must have %d to %d bits, not %d", minRSA, maxRSA, bits)
		}
	case *ecdsa.PublicKey, ed25519.PublicKey:
	default:
		return errors.New("the key must be an RSA, ECDSA or Ed25519 key")
	}
	return nil
}

// checkTime returns an error outside of the validity of a certificate.
func checkTime(leaf *x509.Certificate, now time.Time) error {
	switch {
	case now.Before(leaf.NotBefore):
		return fmt.Errorf("its certificate is not valid before %s", leaf.NotBefore.UTC().Format(time.RFC3339))
	case !now.Before(leaf.NotAfter):
		return fmt.Errorf("its certificate expired at %s", leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	return nil
}

// isSelfSigned reports whether a certificate is its own authority.
func isSelfSigned(leaf *x509.Certificate) bool {
	return leaf.CheckSignature(leaf.SignatureAlgorithm, leaf.RawTBSCertificate, leaf.Signature) == nil
}

package certs

import (
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/cert"
)

// The keys of the Secret.
const (
	// bundleKey holds all certificates to trust in PEM, that of the signer first.
	bundleKey = "ca.crt"
	// signerCertKey and signerKeyKey hold the authority that signs.
	signerCertKey, signerKeyKey = corev1.TLSCertKey, corev1.TLSPrivateKeyKey
	// nextCertKey and nextKeyKey hold the authority that will sign, once all trust it.
	nextCertKey, nextKeyKey = "next.crt", "next.key"
)

// The annotations of the Secret.
const (
	// RotateAnnotation asks for a new authority by a value that is not that of the last rotation.
	RotateAnnotation = "knative-apiserver/rotate-ca"
	// rotatedAnnotation is the value of RotateAnnotation that the last rotation was for.
	rotatedAnnotation = "knative-apiserver/rotated-ca"
	// sinceAnnotation says since when a rotation is at its current step, in RFC 3339.
	sinceAnnotation = "knative-apiserver/rotating-since"
)

// state is what the Secret says: all there is to know about a rotation, so that any replica goes on with it. Its steps
// can be told from what is there:
//
//	stable       the signer alone is trusted
//	introducing  next is trusted too, the signer still signs
//	retiring     the former next signs, the former signer is still trusted
type state struct {
	signer, next *authority
	// trusted has the signer first, and next.
	trusted []*x509.Certificate
	// since is when the current step of a rotation was begun.
	since time.Time
	// wanted and rotated are the values of RotateAnnotation and rotatedAnnotation.
	wanted, rotated string
}

// newState returns that of a first authority.
func newState(name string, validity time.Duration, now time.Time) (*state, error) {
	signer, err := newAuthority(name, validity, now)
	if err != nil {
		return nil, err
	}
	return &state{signer: signer, trusted: []*x509.Certificate{signer.cert}}, nil
}

// readState reads what write wrote. It is nil for a Secret without authority, which somebody made for us to fill in.
func readState(secret *corev1.Secret) (*state, error) {
	if len(secret.Data[signerCertKey]) == 0 && len(secret.Data[signerKeyKey]) == 0 {
		return nil, nil
	}
	fail := func(key string, err error) (*state, error) {
		return nil, fmt.Errorf("key %q of Secret %s/%s is damaged (restore the Secret, or delete it where a break in trust does no harm): %w",
			key, secret.Namespace, secret.Name, err)
	}
	s := &state{wanted: secret.Annotations[RotateAnnotation], rotated: secret.Annotations[rotatedAnnotation]}
	var err error
	if s.signer, err = parseAuthority(secret.Data[signerCertKey], secret.Data[signerKeyKey]); err != nil {
		return fail(signerCertKey, err)
	}
	s.trust(s.signer.cert)
	if len(secret.Data[nextCertKey]) > 0 {
		if s.next, err = parseAuthority(secret.Data[nextCertKey], secret.Data[nextKeyKey]); err != nil {
			return fail(nextCertKey, err)
		}
		s.trust(s.next.cert)
	}
	if len(secret.Data[bundleKey]) > 0 {
		bundle, err := cert.ParseCertsPEM(secret.Data[bundleKey])
		if err != nil {
			return fail(bundleKey, err)
		}
		for _, c := range bundle {
			s.trust(c)
		}
	}
	// Without a readable time the step is taken as one that has yet to begin.
	if since, err := time.Parse(time.RFC3339Nano, secret.Annotations[sinceAnnotation]); err == nil {
		s.since = since
	}
	return s, nil
}

// trust adds a certificate unless it is trusted.
func (s *state) trust(c *x509.Certificate) {
	if !slices.ContainsFunc(s.trusted, c.Equal) {
		s.trusted = append(s.trusted, c)
	}
}

// write returns a copy of the Secret that says s. What is neither a key nor an annotation of ours stays.
func (s *state) write(secret *corev1.Secret) *corev1.Secret {
	secret = secret.DeepCopy()
	data := maps.Clone(secret.Data)
	if data == nil {
		data = map[string][]byte{}
	}
	data[signerCertKey], data[signerKeyKey] = s.signer.certPEM, s.signer.keyPEM
	data[bundleKey] = s.bundle()
	delete(data, nextCertKey)
	delete(data, nextKeyKey)
	if s.next != nil {
		data[nextCertKey], data[nextKeyKey] = s.next.certPEM, s.next.keyPEM
	}
	secret.Data = data

	annotations := maps.Clone(secret.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	for name, value := range map[string]string{RotateAnnotation: s.wanted, rotatedAnnotation: s.rotated} {
		if value != "" {
			annotations[name] = value
		}
	}
	delete(annotations, sinceAnnotation)
	if !s.since.IsZero() {
		annotations[sinceAnnotation] = s.since.UTC().Format(time.RFC3339Nano)
	}
	secret.Annotations = annotations
	return secret
}

// bundle is what is trusted, in PEM.
func (s *state) bundle() []byte { return encode(s.trusted) }

// rotation says how authorities follow each other.
type rotation struct {
	// name and validity are those of a new authority.
	name     string
	validity time.Duration
	// settle is how long a step takes to be known everywhere.
	settle time.Duration
	// manual leaves rotations to the operator.
	manual bool
}

// advance returns the state that follows s at now, or nil, where none is due, and then when one will be.
// known tells whether everybody we can ask trusts what s says.
func (r rotation) advance(s *state, now time.Time, known bool) (*state, time.Time, error) {
	ended := s.since.Add(r.settle)
	switch {
	case r.manual:
		return nil, s.signer.cert.NotAfter, nil

	case s.signer.expired(now):
		// Nobody trusts it any more: there is nothing to overlap with.
		after, err := newState(r.name, r.validity, now)
		if err != nil {
			return nil, time.Time{}, err
		}
		after.wanted, after.rotated = s.wanted, s.wanted
		return after, time.Time{}, nil

	case s.next == nil && len(s.trusted) == 1:
		due := s.signer.renewal()
		if (s.wanted == "" || s.wanted == s.rotated) && now.Before(due) {
			return nil, due, nil
		}
		next, err := newAuthority(r.name, r.validity, now)
		if err != nil {
			return nil, time.Time{}, err
		}
		after := *s
		after.next, after.trusted = next, []*x509.Certificate{s.signer.cert, next.cert}
		after.since, after.rotated = now, s.wanted
		return &after, time.Time{}, nil

	case s.since.IsZero():
		after := *s
		after.since = now
		return &after, time.Time{}, nil

	case now.Before(ended):
		return nil, ended, nil

	case s.next != nil:
		if !known {
			return nil, now.Add(retry), nil
		}
		after := *s
		after.signer, after.next, after.since = s.next, nil, now
		after.trusted = []*x509.Certificate{s.next.cert, s.signer.cert}
		return &after, time.Time{}, nil

	default:
		after := *s
		after.trusted, after.since = []*x509.Certificate{s.signer.cert}, time.Time{}
		return &after, time.Time{}, nil
	}
}

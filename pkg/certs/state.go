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
	// bundleKey holds all trusted certificates in PEM, the signer's first.
	bundleKey = "ca.crt"
	// signerCertKey and signerKeyKey hold the authority that signs.
	signerCertKey, signerKeyKey = corev1.TLSCertKey, corev1.TLSPrivateKeyKey
	// nextCertKey and nextKeyKey hold the authority that will sign once all clients trust it.
	nextCertKey, nextKeyKey = "next.crt", "next.key"
)

// The annotations of the Secret.
const (
	// RotateAnnotation requests a new authority if its value differs from the last rotation's.
	RotateAnnotation = "knative-apiserver/rotate-ca"
	// rotatedAnnotation is the value of RotateAnnotation at the last rotation.
	rotatedAnnotation = "knative-apiserver/rotated-ca"
	// sinceAnnotation is the start time of the current step of a rotation, in RFC 3339.
	sinceAnnotation = "knative-apiserver/rotating-since"
)

// state is the content of the Secret. It describes a rotation completely, so that any replica can continue it. The step
// follows from the content:
//
//	stable       the signer alone is trusted
//	introducing  next is trusted too, the signer still signs
//	retiring     the former next signs, the former signer is still trusted
type state struct {
	signer, next *authority
	// trusted contains the certificates of the signer, which is first, and of next.
	trusted []*x509.Certificate
	// since is the start time of the current step of a rotation.
	since time.Time
	// wanted and rotated are the values of RotateAnnotation and rotatedAnnotation.
	wanted, rotated string
	// tickets are nil for authorities without session tickets, and in a Secret of an earlier release.
	tickets *tickets
}

// newState returns the state with a first authority.
func (r rotation) newState(now time.Time) (*state, error) {
	signer, err := newAuthority(r.name, r.validity, now)
	if err != nil {
		return nil, err
	}
	s := &state{signer: signer, trusted: []*x509.Certificate{signer.cert}}
	if r.tickets {
		s.tickets = newTickets(now)
	}
	return s, nil
}

// readState parses a Secret that write returned. It returns nil for a Secret without an authority, which an operator created.
func readState(secret *corev1.Secret) (*state, error) {
	if len(secret.Data[signerCertKey]) == 0 && len(secret.Data[signerKeyKey]) == 0 {
		return nil, nil
	}
	fail := func(key string, err error) (*state, error) {
		return nil, fmt.Errorf("key %q of Secret %s/%s is damaged (restore the Secret, or delete it if clients may lose trust temporarily): %w",
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
	s.tickets = readTickets(secret)
	// Without a valid time, the step begins now.
	if since, err := time.Parse(time.RFC3339Nano, secret.Annotations[sinceAnnotation]); err == nil {
		s.since = since
	}
	return s, nil
}

// trust adds a certificate if it is not yet trusted.
func (s *state) trust(c *x509.Certificate) {
	if !slices.ContainsFunc(s.trusted, c.Equal) {
		s.trusted = append(s.trusted, c)
	}
}

// write returns a copy of the Secret with the content of s. Other keys and annotations do not change.
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
	if s.tickets != nil {
		data[ticketsKey] = s.tickets.encode()
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

// bundle returns the trusted certificates in PEM.
func (s *state) bundle() []byte { return encode(s.trusted) }

// rotation configures the succession of authorities.
type rotation struct {
	// name and validity are the properties of a new authority.
	name     string
	validity time.Duration
	// settle is the time for all clients to observe a step.
	settle time.Duration
	// manual disables automatic rotation.
	manual bool
	// tickets is true if the keys of session tickets rotate too, independently of the authority.
	tickets bool
}

// advance returns the state that follows s at now, or nil if no step is due, and the time of the next step. known reports
// whether all observable clients trust the authorities of s.
func (r rotation) advance(s *state, now time.Time, known bool) (*state, time.Time, error) {
	after, due, err := r.advanceAuthority(s, now, known)
	if err != nil || after != nil || !r.tickets {
		return after, due, err
	}
	if replace := s.tickets.due(now); now.Before(replace) {
		if replace.Before(due) {
			due = replace
		}
		return nil, due, nil
	}
	next := *s
	next.tickets = s.tickets.next(now)
	return &next, time.Time{}, nil
}

// advanceAuthority is advance without session tickets.
func (r rotation) advanceAuthority(s *state, now time.Time, known bool) (*state, time.Time, error) {
	ended := s.since.Add(r.settle)
	switch {
	case r.manual:
		return nil, s.signer.cert.NotAfter, nil

	case s.signer.expired(now):
		// The expired authority is no longer trusted, so the two need not overlap.
		after, err := r.newState(now)
		if err != nil {
			return nil, time.Time{}, err
		}
		after.wanted, after.rotated, after.tickets = s.wanted, s.wanted, s.tickets
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

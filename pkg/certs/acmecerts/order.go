package acmecerts

import (
	"bytes"
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"golang.org/x/crypto/acme"
	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
)

const (
	// orderTimeout bounds the time of an order, requestTimeout the time of a request to the ACME server.
	orderTimeout, requestTimeout = 5 * time.Minute, 30 * time.Second
	// lastRetry is the longest delay after a failed order. defaultPause is the pause after a rate limit without Retry-After, maxPause the
	// longest one, outagePause the one after a request without a response.
	lastRetry                           = 12 * time.Hour
	defaultPause, maxPause, outagePause = time.Hour, 24 * time.Hour, 30 * time.Second
	// maxRetries bounds the attempts of a request, for example after an invalid nonce.
	maxRetries = 5
	// cleanupTimeout bounds the time to store the outcome of an order.
	cleanupTimeout = 10 * time.Second
)

// registered is the account in use.
type registered struct {
	config Config
	client *acme.Client
}

// order obtains the certificate of a host name, and stores it or the failure.
func (i *Issuer) order(ctx context.Context, host string, config Config) {
	defer i.poke()
	defer i.setStage(host, "")
	i.mu.Lock()
	var before record
	if h := i.held[host]; h != nil {
		before = h.record
	}
	i.mu.Unlock()
	limited, cancel := context.WithTimeout(ctx, orderTimeout)
	defer cancel()
	next, err := i.obtain(limited, host, config, before.Failures)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		next = i.failed(ctx, host, before, err)
	} else {
		i.options.Logger.Info("Obtained certificate", "host", host, "renew", next.Renew)
	}
	ctx, done := context.WithTimeout(ctx, cleanupTimeout)
	defer done()
	if err := i.save(ctx, host, next); err != nil {
		i.options.Logger.Error(err, "Failed to store the outcome of an order; ordering is paused", "host", host)
		// Another order might be lost too.
		i.setPause(ctx, outagePause, "the last certificate could not be stored")
	}
}

// failed returns the record after a failed order.
func (i *Issuer) failed(ctx context.Context, host string, before record, err error) record {
	now := i.options.Clock.Now()
	next := before
	next.Problem = text(err)
	delay := outagePause
	var unreachable *url.Error
	if errors.As(err, &unreachable) {
		// The cause affects all orders, not this host name alone.
		i.setPause(ctx, outagePause, "the ACME server does not respond")
	} else {
		next.Failures++
		delay = backoff.Delay(next.Failures, i.options.FirstRetry, lastRetry)
	}
	if after, limited := rateLimit(err); limited {
		after = min(max(cmp.Or(after, defaultPause), outagePause), maxPause)
		delay = max(delay, after)
		i.setPause(ctx, after, "the ACME server limits the rate of orders")
	}
	next.Retry = now.Add(delay)
	i.options.Logger.Info("Failed to obtain certificate; retrying", "host", host, "failures", next.Failures, "retry", next.Retry, "reason", next.Problem)
	return next
}

// rateLimit reports whether an error is about a rate limit or an overload, and the time to wait, or 0 if the server gives none.
func rateLimit(err error) (after time.Duration, limited bool) {
	var problem *acme.Error
	if !errors.As(err, &problem) {
		return 0, false
	}
	if after, limited = acme.RateLimit(problem); limited {
		return after, true
	}
	seconds, err := strconv.Atoi(problem.Header.Get("Retry-After"))
	if err == nil {
		after = time.Duration(min(max(seconds, 0), int(maxPause/time.Second))) * time.Second
	}
	switch problem.StatusCode {
	case http.StatusTooManyRequests:
		return after, true
	case http.StatusServiceUnavailable:
		return max(after, outagePause), true
	}
	return 0, false
}

// setPause stores a pause of all orders, so that a restart does not end it. The reason is disclosed to all namespaces.
func (i *Issuer) setPause(ctx context.Context, d time.Duration, reason string) {
	next := pause{Until: i.options.Clock.Now().Add(d), Reason: reason + "; continuing at " + i.options.Clock.Now().Add(d).UTC().Format(time.RFC3339)}
	i.mu.Lock()
	i.pausedUntil, i.pause = next.Until, next.Reason
	i.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, cleanupTimeout)
	defer cancel()
	err := i.edit(ctx, accountSecret, func(s *corev1.Secret) error {
		raw, err := json.Marshal(next)
		s.Data[pauseKey] = raw
		return err
	})
	if err != nil {
		i.options.Logger.Error(err, "Failed to store pause of orders")
	}
}

// obtain orders the certificate of a host name.
func (i *Issuer) obtain(ctx context.Context, host string, config Config, failures int) (record, error) {
	client, err := i.account(ctx, config)
	if err != nil {
		return record{}, err
	}
	order, err := client.AuthorizeOrder(ctx, acme.DomainIDs(host))
	if err != nil {
		return record{}, err
	}
	for _, address := range order.AuthzURLs {
		if err := i.authorize(ctx, client, host, address, config.Challenge, failures); err != nil {
			return record{}, err
		}
	}
	i.setStage(host, "waiting for the ACME server to issue the certificate")
	ready, err := client.WaitOrder(ctx, order.URI)
	if err != nil {
		return record{}, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return record{}, err
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{DNSNames: []string{host}}, key)
	if err != nil {
		return record{}, err
	}
	chain, err := finalize(ctx, client, order.URI, ready.FinalizeURL, csr)
	if err != nil {
		return record{}, err
	}
	certificate, err := assemble(host, chain, key)
	if err != nil {
		return record{}, fmt.Errorf("the ACME server issued an invalid certificate: %w", err)
	}
	encoded, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return record{}, err
	}
	return record{Certificate: chain, Key: encoded, Directory: config.Directory, Renew: renewal(certificate.Leaf)}, nil
}

// finalize requests the certificate of an order that is ready.
func finalize(ctx context.Context, client *acme.Client, order, address string, csr []byte) ([][]byte, error) {
	chain, _, err := client.CreateOrderCert(ctx, address, csr, true)
	var problem *acme.Error
	if err == nil || errors.As(err, &problem) || ctx.Err() != nil {
		return chain, err
	}
	// The client relies on a Location in the response, which the ACME server need not send (RFC 8555 7.4).
	finalized, waitErr := client.WaitOrder(ctx, order)
	switch {
	case waitErr != nil:
		return nil, waitErr
	case finalized.CertURL == "":
		return nil, err
	}
	return client.FetchCert(ctx, finalized.CertURL, true)
}

// renewal returns the time to replace a certificate: two thirds of its lifetime, less up to a twentieth, so that certificates that were
// obtained together are not renewed together.
func renewal(leaf *x509.Certificate) time.Time {
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	jitter := time.Duration(0)
	if limit := int64(lifetime / 20); limit > 0 {
		if n, err := rand.Int(rand.Reader, big.NewInt(limit)); err == nil {
			jitter = time.Duration(n.Int64())
		}
	}
	return leaf.NotBefore.Add(lifetime*2/3 - jitter)
}

// authorize completes one challenge of an authorization, unless it is valid already.
func (i *Issuer) authorize(ctx context.Context, client *acme.Client, host, address, only string, failures int) (err error) {
	authorization, err := client.GetAuthorization(ctx, address)
	if err != nil {
		return err
	}
	if authorization.Status == acme.StatusValid {
		return nil
	}
	chosen := choose(authorization.Challenges, only, failures)
	if chosen == nil {
		return errors.New("the ACME server offers no supported challenge")
	}
	response, err := client.HTTP01ChallengeResponse(chosen.Token)
	if err != nil {
		return err
	}
	i.setStage(host, fmt.Sprintf("waiting for the ACME server to validate the challenge %s", chosen.Type))
	pending := challenge{Host: host, Type: chosen.Type, Token: chosen.Token, Response: response, Expires: i.options.Clock.Now().Add(orderTimeout)}
	if err := i.setChallenge(ctx, host, pending); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if err := i.setChallenge(ctx, host, challenge{}); err != nil {
			i.options.Logger.Error(err, "Failed to remove challenge", "host", host)
		}
	}()
	if !backoff.Sleep(ctx, i.options.Clock, i.options.Settle) {
		return context.Cause(ctx)
	}
	if _, err := client.Accept(ctx, chosen); err != nil {
		return err
	}
	_, err = client.WaitAuthorization(ctx, authorization.URI)
	return err
}

// choose returns the challenge to use: the configured type, or HTTP-01 at first, alternating after failures.
func choose(offered []*acme.Challenge, only string, failures int) *acme.Challenge {
	types := []string{HTTP01, TLSALPN01}
	switch {
	case only != "":
		types = []string{only}
	case failures%2 == 1:
		slices.Reverse(types)
	}
	for _, t := range types {
		for _, c := range offered {
			if c.Type == t {
				return c
			}
		}
	}
	return nil
}

// account returns a client of the account, which it registers if necessary.
func (i *Issuer) account(ctx context.Context, config Config) (*acme.Client, error) {
	i.registration.Lock()
	defer i.registration.Unlock()
	if i.registered != nil && i.registered.config == config {
		return i.registered.client, nil
	}
	var key crypto.Signer
	var binding *acme.ExternalAccountBinding
	err := i.edit(ctx, accountSecret, func(s *corev1.Secret) (err error) {
		if key, err = accountKey(s); err != nil {
			return err
		}
		binding, err = externalBinding(s)
		return err
	})
	if err != nil {
		return nil, err
	}
	transport, err := transport(config)
	if err != nil {
		return nil, err
	}
	client := &acme.Client{
		Key: key, DirectoryURL: config.Directory, UserAgent: "knative-apiserver", HTTPClient: &http.Client{Transport: transport, Timeout: requestTimeout},
		RetryBackoff: func(n int, _ *http.Request, response *http.Response) time.Duration {
			if n > maxRetries || response != nil && response.StatusCode == http.StatusTooManyRequests {
				return 0
			}
			return backoff.Delay(n, 100*time.Millisecond, 2*time.Second)
		},
	}
	account := &acme.Account{ExternalAccountBinding: binding}
	if config.Email != "" {
		account.Contact = []string{"mailto:" + config.Email}
	}
	if _, err := client.Register(ctx, account, func(string) bool { return config.AcceptTerms }); err != nil && !errors.Is(err, acme.ErrAccountAlreadyExists) {
		return nil, fmt.Errorf("register account: %w", err)
	}
	i.registered = &registered{config: config, client: client}
	return client, nil
}

// accountKey returns the key of the account, and creates a missing one in s.
func accountKey(s *corev1.Secret) (crypto.Signer, error) {
	if len(s.Data[keyKey]) == 0 {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		encoded, err := x509.MarshalPKCS8PrivateKey(key)
		if err != nil {
			return nil, err
		}
		s.Data[keyKey] = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: encoded})
		return key, nil
	}
	block, _ := pem.Decode(s.Data[keyKey])
	if block == nil {
		return nil, fmt.Errorf("%s must be a key in PEM", keyKey)
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", keyKey, err)
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("%s must be a key that can sign", keyKey)
	}
	return signer, nil
}

// externalBinding returns the external account binding that the operator has stored, or nil.
func externalBinding(s *corev1.Secret) (*acme.ExternalAccountBinding, error) {
	id, encoded := bytes.TrimSpace(s.Data[bindingIDKey]), bytes.TrimSpace(s.Data[bindingHMACKey])
	if len(id) == 0 {
		return nil, nil
	}
	key, err := base64.RawURLEncoding.DecodeString(string(bytes.TrimRight(encoded, "=")))
	if err != nil || len(key) == 0 {
		return nil, fmt.Errorf("%s must be a key in base64url", bindingHMACKey)
	}
	return &acme.ExternalAccountBinding{KID: string(id), Key: key}, nil
}

// Package tokens obtains the tokens that authenticate deliveries of events: tokens of a ServiceAccount for the audience of an endpoint. It caches
// them, renews them early, and bounds the requests at the API.
package tokens

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/metrics"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/backoff"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// Lifetime is the requested lifetime of a token.
	Lifetime = time.Hour
	// minLifetime is the lifetime of the shortest token that is used.
	minLifetime = time.Minute
	// A token is renewed when between 3/4 and 5/6 of its lifetime have passed, so that tokens of the same age are not all renewed at once. It is not used
	// in the last part of its lifetime, because the recipient's clock may be ahead and the request takes time.
	renewalPart, renewalJitterPart, unusedPart = 4, 12, 60
	// timeout bounds a request.
	timeout = 5 * time.Second
	// firstDelay and maxDelay bound the time until the next request after a failure. Failures of other tokens do not count.
	firstDelay, maxDelay = time.Second, time.Minute
	// busyDelay is the delay of a delivery whose namespace has too many requests in flight, or had too many in the last seconds.
	busyDelay = 100 * time.Millisecond
	// freshness is the age up to which a token that the recipient rejects is not requested again: a new one would be rejected too.
	freshness = time.Minute
	// maxTokens bounds the cached tokens, and maxToken the bytes of one.
	maxTokens, maxToken = 16384, 8 << 10
	// maxInFlight bounds the concurrent requests, and maxNamespaceInFlight those of one namespace.
	maxInFlight, maxNamespaceInFlight = 32, 8
	// namespaceRate and namespaceBurst bound the requests of one namespace per second. A restart requests all tokens again, and none is renewed
	// earlier than after 45 minutes.
	namespaceRate, namespaceBurst = 100, 1000
)

// Requester requests tokens of ServiceAccounts.
type Requester interface {
	// RequestToken returns the request with its status, which has the token.
	RequestToken(ctx context.Context, account types.NamespacedName, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error)
}

// TokenReviewer creates TokenReviews. The client of authentication.k8s.io/v1 implements it.
type TokenReviewer interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, options metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// Options configure Tokens.
type Options struct {
	Requester Requester
	// Reviewer reviews each token, for its audience and without naming one: a token that the API itself accepts is not sent. Nil reviews none.
	Reviewer TokenReviewer
	// Clock is the clock; nil means the real one.
	Clock clock.Clock
	// Register registers the metrics. Nil disables them.
	Register func(...metrics.Registerable)
}

// Key identifies a token.
type Key struct {
	Namespace string
	Account   eventing.Account
	Audience  string
}

// UnavailableError is the error of a token that cannot be obtained at the moment. The delivery must wait: it may not be made without the token. Its text names
// neither the token nor the response of the API, except its reason.
type UnavailableError struct {
	// RetryAfter is the time until the next request.
	RetryAfter time.Duration
	Err        error
}

// Error implements error.
func (e *UnavailableError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.Err }

var (
	errBusy     = errors.New("too many requests for tokens")
	errNoToken  = errors.New("the API returned no valid token")
	errNoReview = errors.New("the API does not recognize the token that it returned")
	// ErrAPIAudience is the cause of an UnavailableError if the API accepts tokens for the audience: whoever gets one could act as the ServiceAccount.
	ErrAPIAudience = errors.New("tokens for an audience of the Kubernetes API are not sent")
)

// Tokens obtains tokens. Its methods may be called concurrently.
type Tokens struct {
	options Options
	metrics *metrics.CounterVec

	// mu guards the fields below, and the fields of each *entry.
	mu sync.Mutex
	// entries has the entries of recent deliveries, inFlight is the number of requests in flight.
	entries  *cache
	inFlight int
}

// entry is a token, and the attempts to get it.
type entry struct {
	// token is empty without one. It is requested again at renewal and not used from expiry on.
	token                     string
	obtained, renewal, expiry time.Time
	// failures is the number of failed requests since the last token, err the error of the last, and until the time of the next.
	failures int
	err      error
	until    time.Time
	// request is closed when the request in flight ends. Nil without one.
	request chan struct{}
}

// New returns Tokens.
func New(o Options) *Tokens {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	t := &Tokens{
		options: o, entries: newCache(maxTokens),
		metrics: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "eventing", Name: "token_requests_total", StabilityLevel: metrics.ALPHA,
			Help: "Number of requests for tokens that authenticate deliveries, by result: obtained, refused, failed, limited.",
		}, []string{"result"}),
	}
	if o.Register != nil {
		o.Register(t.metrics)
	}
	return t
}

// Get returns a token. A cached one is returned at once, and renewed in the background if it is due. Without one Get waits for a request, which
// concurrent calls share. The error is an UnavailableError, or the error of ctx.
func (t *Tokens) Get(ctx context.Context, key Key) (string, error) {
	for {
		token, wait, err := t.cached(ctx, key)
		if token != "" || err != nil {
			return token, err
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// cached returns a usable token, or the error of a failed request whose repetition is not due yet. Without both it returns a channel that is closed
// when the request in flight ends. It starts a request if one is due.
func (t *Tokens) cached(ctx context.Context, key Key) (token string, wait <-chan struct{}, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.options.Clock.Now()
	e := t.entries.use(key, now)
	usable := e.token != "" && now.Before(e.expiry)
	if usable && now.Before(e.renewal) {
		return e.token, nil, nil
	}
	if e.request == nil && !now.Before(e.until) {
		t.start(ctx, key, e, now)
	}
	switch {
	case usable:
		return e.token, nil, nil
	case e.request != nil:
		return "", e.request, nil
	default:
		return "", nil, &UnavailableError{RetryAfter: e.until.Sub(now), Err: e.err}
	}
}

// start starts a request, unless there are too many. It goes on when ctx ends, for other callers. mu is held.
func (t *Tokens) start(ctx context.Context, key Key, e *entry, now time.Time) {
	n := t.entries.namespace(key.Namespace)
	if t.inFlight >= maxInFlight || n.inFlight >= maxNamespaceInFlight || !n.rate.AllowN(now, 1) {
		t.metrics.WithLabelValues("limited").Inc()
		e.err, e.until = errBusy, now.Add(busyDelay)
		t.entries.release(key.Namespace)
		return
	}
	t.inFlight++
	n.inFlight++
	e.request = make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		token, lifetime, err := t.request(ctx, key)
		t.mu.Lock()
		defer t.mu.Unlock()
		t.inFlight--
		n.inFlight--
		t.entries.release(key.Namespace)
		close(e.request)
		e.request = nil
		ended := t.options.Clock.Now()
		if err != nil {
			e.failures++
			delay := backoff.Delay(e.failures, firstDelay, maxDelay)
			e.err, e.until = err, ended.Add(delay/2+rand.N(delay/2+1)) //nolint:gosec // a jitter
			return
		}
		// The lifetime began before the request ended.
		*e = entry{
			token: token, obtained: ended, expiry: now.Add(lifetime - lifetime/unusedPart),
			renewal: now.Add(lifetime - lifetime/renewalPart + rand.N(lifetime/renewalJitterPart+1)), //nolint:gosec // a jitter
		}
	}()
}

// request requests a token from the API.
func (t *Tokens) request(ctx context.Context, key Key) (token string, lifetime time.Duration, err error) {
	account := types.NamespacedName{Namespace: key.Namespace, Name: key.Account.Name}
	answer, err := t.options.Requester.RequestToken(ctx, account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{key.Audience}, ExpirationSeconds: ptr.To(int64(Lifetime / time.Second))},
	})
	if err == nil {
		token = answer.Status.Token
		lifetime, err = t.check(answer)
	}
	if err == nil {
		err = t.review(ctx, token, key.Audience)
	}
	switch {
	case err == nil:
		t.metrics.WithLabelValues("obtained").Inc()
		return token, lifetime, nil
	case errors.Is(err, ErrAPIAudience):
		t.metrics.WithLabelValues("refused").Inc()
	default:
		t.metrics.WithLabelValues("failed").Inc()
	}
	return "", 0, fmt.Errorf("get a token of ServiceAccount %q for audience %q: %w", account, key.Audience, summary(err))
}

// check returns the lifetime of a new token. The clock of the API server may differ from ours.
func (t *Tokens) check(answer *authenticationv1.TokenRequest) (time.Duration, error) {
	token := answer.Status.Token
	if token == "" || len(token) > maxToken || slices.ContainsFunc([]byte(token), func(c byte) bool { return c <= ' ' || c >= 0x7f }) {
		return 0, errNoToken
	}
	lifetime := time.Duration(ptr.Deref(answer.Spec.ExpirationSeconds, 0)) * time.Second
	if lifetime <= 0 || lifetime > Lifetime {
		lifetime = Lifetime
	}
	if left := answer.Status.ExpirationTimestamp.Sub(t.options.Clock.Now()); left > 0 {
		lifetime = min(lifetime, left)
	}
	if lifetime < minLifetime {
		return 0, errNoToken
	}
	return lifetime, nil
}

// review returns ErrAPIAudience if the API itself accepts a token. A review has the same result for a token that is not for the API and for one
// that its authenticators cannot verify at the moment: so the first review must confirm the token for its audience.
func (t *Tokens) review(ctx context.Context, token, audience string) error {
	if t.options.Reviewer == nil {
		return nil
	}
	confirmed, err := t.reviewFor(ctx, token, audience)
	switch {
	case err != nil:
		return err
	case !confirmed.Authenticated || !slices.Contains(confirmed.Audiences, audience):
		return errNoReview
	}
	accepted, err := t.reviewFor(ctx, token)
	switch {
	case err != nil:
		return err
	case accepted.Authenticated:
		return ErrAPIAudience
	}
	return nil
}

// reviewFor reviews a token for audiences, or for the ones of the API.
func (t *Tokens) reviewFor(ctx context.Context, token string, audiences ...string) (*authenticationv1.TokenReviewStatus, error) {
	review, err := t.options.Reviewer.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("review it: %w", err)
	}
	return &review.Status, nil
}

// summary returns an error for the users of a namespace. Errors of clients name addresses of the API, or quote the request.
func summary(err error) error {
	reason := apierrors.ReasonForError(err)
	switch {
	case reason != metav1.StatusReasonUnknown:
		return &summarized{"the API answers " + string(reason), err}
	case errors.Is(err, context.DeadlineExceeded):
		return &summarized{"the API did not answer in time", err}
	case errors.Is(err, ErrAPIAudience), errors.Is(err, errNoToken), errors.Is(err, errNoReview):
		return err
	default:
		return &summarized{"the API is unavailable", err}
	}
}

type summarized struct {
	text string
	err  error
}

func (s *summarized) Error() string { return s.text }
func (s *summarized) Unwrap() error { return s.err }

// Rejected must be called when a recipient rejected a token. It reports whether another token may be accepted: tokens become invalid early when the keys
// of the API server or the ServiceAccount change.
func (t *Tokens) Rejected(key Key, token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, now := t.entries.get(key), t.options.Clock.Now()
	if e == nil {
		return false
	}
	if e.token != token {
		return e.token != ""
	}
	if now.Sub(e.obtained) < freshness {
		return false
	}
	e.token, e.expiry, e.renewal = "", time.Time{}, time.Time{}
	return true
}

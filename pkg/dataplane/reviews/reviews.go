// Package reviews authenticates callers of data planes by TokenReviews, and authorizes them by SubjectAccessReviews. It caches
// the decisions, and bounds the requests that callers cause at the API.
package reviews

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/singleflight"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// TTL is the lifetime of a decision, and so the longest delay of a revocation.
	TTL = 10 * time.Second
	// maxToken bounds tokens, in bytes.
	maxToken = 16 << 10
	// maxDecisions bounds each of the four caches: accepted and rejected tokens, allowed and denied access. Rejections have
	// caches of their own, so that they evict no acceptance.
	maxDecisions = 4096
	// maxUser bounds the identity in a cached decision, in bytes. Decisions about larger identities are not cached.
	maxUser = 8 << 10
	// rememberedFor is the time after an acceptance in which a caller is known: the next review is not limited with those of
	// unknown callers.
	rememberedFor = 10 * time.Minute
	// timeout limits a review, whose result several callers may await.
	timeout = 5 * time.Second
)

// TokenReviewer creates TokenReviews. The client of authentication.k8s.io/v1 implements it.
type TokenReviewer interface {
	Create(ctx context.Context, review *authenticationv1.TokenReview, options metav1.CreateOptions) (*authenticationv1.TokenReview, error)
}

// AccessReviewer creates SubjectAccessReviews. The client of authorization.k8s.io/v1 implements it.
type AccessReviewer interface {
	Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, options metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error)
}

// ErrInvalidToken is the error of a token that authenticates no user for an audience.
var ErrInvalidToken = errors.New("the token is not valid for this audience")

// UnavailableError is the error of a review without a result. Callers must reject the request, and may retry it later.
type UnavailableError struct{ err error }

// Error implements error.
func (e *UnavailableError) Error() string { return "review unavailable: " + e.err.Error() }

// Unwrap returns the cause.
func (e *UnavailableError) Unwrap() error { return e.err }

// ErrLimited is the cause of an UnavailableError if the limit on reviews is exceeded.
var ErrLimited = errors.New("too many reviews")

// User is an authenticated caller. Immutable.
type User struct {
	// Name is not empty.
	Name string

	uid    string
	groups []string
	extra  map[string]authorizationv1.ExtraValue
	// digest identifies the user with all properties.
	digest [sha256.Size]byte
	size   int
}

// Access is a verb of a user on an object.
type Access struct {
	Verb, Group, Resource, Namespace, Name string
}

// Audiences are the audiences of which a token must have at least one. Immutable.
type Audiences struct {
	all []string
	key string
}

// NewAudiences returns the audiences of a list, which is not empty.
func NewAudiences(all ...string) *Audiences {
	return &Audiences{all: all, key: strings.Join(all, "\x00") + "\x00\x00"}
}

// Options configure Reviews.
type Options struct {
	Tokens TokenReviewer
	Access AccessReviewer
	// Clock is the clock; nil means the real one.
	Clock clock.Clock
	// Register registers the metrics. Nil disables them.
	Register func(...metrics.Registerable)
}

// Reviews authenticates and authorizes. Its methods may be called concurrently.
type Reviews struct {
	options Options
	limits  *limits
	metrics *metrics.CounterVec
	// secret is part of each key, so that clients cannot compute the keys of tokens.
	secret [sha256.Size]byte
	// accepted has *accepted by digest of token and audiences. allowed, rejected and denied have the time of the decision.
	accepted, rejected, allowed, denied *utilcache.LRUExpireCache
	inFlight                            singleflight.Group
}

// accepted is a decision about a token.
type accepted struct {
	user *User
	at   time.Time
}

// accessKey identifies a question about access.
type accessKey struct {
	user   [sha256.Size]byte
	access Access
}

// New returns Reviews.
func New(options Options) *Reviews {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	cache := func() *utilcache.LRUExpireCache {
		return utilcache.NewLRUExpireCacheWithClock(maxDecisions, options.Clock)
	}
	r := &Reviews{
		options: options, limits: newLimits(options.Clock),
		accepted: cache(), rejected: cache(), allowed: cache(), denied: cache(),
		metrics: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "callers", Name: "reviews_total", StabilityLevel: metrics.ALPHA,
			Help: "Number of reviews of tokens and of access that no cached decision answered, by result: allowed, denied, limited, failed.",
		}, []string{"review", "result"}),
	}
	rand.Read(r.secret[:])
	if options.Register != nil {
		options.Register(r.metrics)
	}
	return r
}

// Authenticate returns the user of a token. namespace is the namespace of the target, whose callers share a limit. The error is
// ErrInvalidToken or an UnavailableError.
func (r *Reviews) Authenticate(ctx context.Context, namespace string, token []byte, audiences *Audiences) (*User, error) {
	user, err, known := r.Authenticated(token, audiences)
	if known {
		return user, err
	}
	// The token must not alias a buffer that is reused after the request.
	copied := string(token)
	digest := r.digest(token, audiences)
	found, err := r.share(ctx, "token/"+string(digest[:]), func(ctx context.Context) (any, error) {
		return r.reviewToken(ctx, namespace, copied, digest, audiences)
	})
	if err != nil {
		return nil, err
	}
	return found.(*User), nil
}

// Authenticated is like Authenticate if the decision is cached, or evident. Otherwise known is false.
func (r *Reviews) Authenticated(token []byte, audiences *Audiences) (user *User, err error, known bool) {
	if len(token) == 0 || len(token) > maxToken {
		return nil, ErrInvalidToken, true
	}
	digest := r.digest(token, audiences)
	now := r.options.Clock.Now()
	if found, ok := r.accepted.Get(digest); ok && now.Sub(found.(accepted).at) < TTL {
		return found.(accepted).user, nil, true
	}
	if !wellFormed(token) {
		return nil, ErrInvalidToken, true
	}
	if at, ok := r.rejected.Get(digest); ok && now.Sub(at.(time.Time)) < TTL {
		return nil, ErrInvalidToken, true
	}
	return nil, nil, false
}

// Authorize reports whether a user may access an object. The error is an UnavailableError.
func (r *Reviews) Authorize(ctx context.Context, user *User, access Access) (bool, error) {
	if allowed, known := r.Authorized(user, access); known {
		return allowed, nil
	}
	key := accessKey{user.digest, access}
	name := strings.Join([]string{"access", string(user.digest[:]), access.Verb, access.Group, access.Resource, access.Namespace, access.Name}, "/")
	allowed, err := r.share(ctx, name, func(ctx context.Context) (any, error) {
		return r.reviewAccess(ctx, user, key)
	})
	if err != nil {
		return false, err
	}
	return allowed.(bool), nil
}

// Authorized is like Authorize if the decision is cached. Otherwise known is false.
func (r *Reviews) Authorized(user *User, access Access) (allowed, known bool) {
	key, now := accessKey{user.digest, access}, r.options.Clock.Now()
	if at, ok := r.allowed.Get(key); ok && now.Sub(at.(time.Time)) < TTL {
		return true, true
	}
	if at, ok := r.denied.Get(key); ok && now.Sub(at.(time.Time)) < TTL {
		return false, true
	}
	return false, false
}

// share calls review once for concurrent calls with the same key. The review continues for the other callers when ctx is canceled.
func (r *Reviews) share(ctx context.Context, key string, review func(context.Context) (any, error)) (any, error) {
	done := r.inFlight.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
		defer cancel()
		return review(ctx)
	})
	select {
	case result := <-done:
		return result.Val, result.Err
	case <-ctx.Done():
		return nil, &UnavailableError{context.Cause(ctx)}
	}
}

// reviewToken returns the user of a token, and caches the decision.
func (r *Reviews) reviewToken(ctx context.Context, namespace, token string, digest [sha256.Size]byte, audiences *Audiences) (*User, error) {
	_, known := r.accepted.Get(digest)
	release, ok := r.limits.admit(namespace, known)
	if !ok {
		return nil, r.unavailable("token", ErrLimited)
	}
	defer release()
	// Clients log the bodies of requests at level 8, and this one has the token.
	ctx = klog.NewContext(ctx, logr.Discard())
	// The decision is as old as the request for it.
	at := r.options.Clock.Now()
	review, err := r.options.Tokens.Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences.all},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, r.unavailable("token", err)
	}
	status := &review.Status
	// An authenticator without support for audiences returns none.
	intended := slices.ContainsFunc(status.Audiences, func(audience string) bool { return slices.Contains(audiences.all, audience) })
	if !status.Authenticated || status.User.Username == "" || !intended {
		r.metrics.WithLabelValues("token", "denied").Inc()
		r.accepted.Remove(digest)
		r.rejected.Add(digest, at, TTL)
		return nil, ErrInvalidToken
	}
	r.metrics.WithLabelValues("token", "allowed").Inc()
	user := newUser(&status.User)
	if user.size <= maxUser {
		r.accepted.Add(digest, accepted{user, at}, rememberedFor)
	}
	return user, nil
}

// reviewAccess reports whether a user has access, and caches the decision.
func (r *Reviews) reviewAccess(ctx context.Context, user *User, key accessKey) (bool, error) {
	release, ok := r.limits.admit(key.access.Namespace, true)
	if !ok {
		return false, r.unavailable("access", ErrLimited)
	}
	defer release()
	at := r.options.Clock.Now()
	review, err := r.options.Access.Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: user.Name, UID: user.uid, Groups: user.groups, Extra: user.extra,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: key.access.Verb, Group: key.access.Group, Resource: key.access.Resource, Namespace: key.access.Namespace, Name: key.access.Name,
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, r.unavailable("access", err)
	}
	allowed := review.Status.Allowed && !review.Status.Denied
	cache, other, result := r.denied, r.allowed, "denied"
	if allowed {
		cache, other, result = r.allowed, r.denied, "allowed"
	}
	r.metrics.WithLabelValues("access", result).Inc()
	other.Remove(key)
	cache.Add(key, at, TTL)
	return allowed, nil
}

func (r *Reviews) unavailable(review string, err error) error {
	result := "failed"
	if errors.Is(err, ErrLimited) {
		result = "limited"
	}
	r.metrics.WithLabelValues(review, result).Inc()
	return &UnavailableError{fmt.Errorf("review %s: %w", review, err)}
}

// digest identifies a token and its audiences.
func (r *Reviews) digest(token []byte, audiences *Audiences) (digest [sha256.Size]byte) {
	hash := sha256.New()
	hash.Write(r.secret[:])
	hash.Write([]byte(audiences.key))
	hash.Write(token)
	hash.Sum(digest[:0])
	return digest
}

// Bearer returns the token of an Authorization header field.
func Bearer(authorization []byte) (token []byte, ok bool) {
	scheme, token, ok := bytes.Cut(authorization, []byte(" "))
	return bytes.TrimLeft(token, " "), ok && bytes.EqualFold(scheme, []byte("bearer"))
}

// wellFormed reports whether a token has the form of RFC 6750 2.1.
func wellFormed(token []byte) bool {
	padding := false
	for i, c := range token {
		if c == '=' && i > 0 {
			padding = true
			continue
		}
		if padding || !tokenChars[c] {
			return false
		}
	}
	return true
}

// tokenChars are the characters of tokens.
var tokenChars = func() (chars [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~+/") {
		chars[c] = true
	}
	return chars
}()

// newUser returns the user of a review.
func newUser(info *authenticationv1.UserInfo) *User {
	u := &User{Name: info.Username, uid: info.UID, groups: info.Groups}
	hash := sha256.New()
	write := func(values ...string) {
		fmt.Fprintf(hash, "%d", len(values))
		for _, value := range values {
			fmt.Fprintf(hash, ":%d:%s", len(value), value)
			u.size += len(value)
		}
	}
	write(info.Username, info.UID)
	write(info.Groups...)
	keys := make([]string, 0, len(info.Extra))
	for key := range info.Extra {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	if len(keys) > 0 {
		u.extra = make(map[string]authorizationv1.ExtraValue, len(keys))
	}
	for _, key := range keys {
		u.extra[key] = authorizationv1.ExtraValue(info.Extra[key])
		write(key)
		write(info.Extra[key]...)
	}
	hash.Sum(u.digest[:0])
	return u
}

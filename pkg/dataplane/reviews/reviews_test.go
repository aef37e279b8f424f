package reviews

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	authenticationclient "k8s.io/client-go/kubernetes/typed/authentication/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	testingclock "k8s.io/utils/clock/testing"
)

const audience = "http://hello.default.example.com"

var audiences = NewAudiences("http://other.example.com", audience)

// invoke is the access that tests request.
var invoke = Access{Verb: "invoke", Group: "serving.knative.dev", Resource: "services", Namespace: "default", Name: "hello"}

// fakeAPI answers reviews. Tokens are valid if they are keys of users; users have access if they are keys of allowed.
type fakeAPI struct {
	mu      sync.Mutex
	users   map[string]authenticationv1.UserInfo
	allowed map[string]bool
	err     error
	// wait, if not nil, delays each answer until it is closed.
	wait chan struct{}
	// intended are the audiences of all valid tokens.
	intended []string

	tokens   []authenticationv1.TokenReviewSpec
	accesses []authorizationv1.SubjectAccessReviewSpec
}

type tokenReviews struct{ *fakeAPI }

func (f tokenReviews) Create(ctx context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tokens = append(f.tokens, review.Spec)
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	user, ok := f.users[review.Spec.Token]
	answer := review.DeepCopy()
	answer.Status = authenticationv1.TokenReviewStatus{Authenticated: ok, User: user}
	if ok {
		answer.Status.Audiences = f.intended
	}
	return answer, nil
}

type accessReviews struct{ *fakeAPI }

func (f accessReviews) Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.accesses = append(f.accesses, review.Spec)
	if err := f.answer(ctx); err != nil {
		return nil, err
	}
	answer := review.DeepCopy()
	answer.Status.Allowed = f.allowed[review.Spec.User]
	return answer, nil
}

func (f *fakeAPI) answer(ctx context.Context) error {
	if f.wait != nil {
		f.mu.Unlock()
		defer f.mu.Lock()
		select {
		case <-f.wait:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return f.err
}

func (f *fakeAPI) asked() (tokens, accesses int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.tokens), len(f.accesses)
}

func newReviews() (*Reviews, *fakeAPI, *testingclock.FakeClock) {
	api := &fakeAPI{users: map[string]authenticationv1.UserInfo{}, allowed: map[string]bool{}, intended: []string{audience}}
	clock := testingclock.NewFakeClock(time.Unix(1e9, 0))
	return New(Options{Tokens: tokenReviews{api}, Access: accessReviews{api}, Clock: clock}), api, clock
}

// authenticate expects the user of a token, or "" for one that is not valid.
func authenticate(t *testing.T, r *Reviews, token, want string) *User {
	t.Helper()
	user, err := r.Authenticate(t.Context(), "default", []byte(token), audiences)
	switch {
	case want == "":
		if !errors.Is(err, ErrInvalidToken) {
			t.Fatalf("token %q: got %v, want %v", token, err, ErrInvalidToken)
		}
	case err != nil:
		t.Fatalf("token %q: %v", token, err)
	case user.Name != want:
		t.Fatalf("token %q: got user %q, want %q", token, user.Name, want)
	}
	return user
}

// authorize checks whether a user has access.
func authorize(t *testing.T, r *Reviews, user *User, want bool) {
	t.Helper()
	got, err := r.Authorize(t.Context(), user, invoke)
	if err != nil || got != want {
		t.Fatalf("access of %s: got %v, %v, want %v", user.Name, got, err, want)
	}
}

// A review contains all properties of the caller, and its decision is cached for ten seconds.
func TestReviews(t *testing.T) {
	r, api, clock := newReviews()
	api.users["valid"] = authenticationv1.UserInfo{
		Username: "jane", UID: "7", Groups: []string{"a", "b"}, Extra: map[string]authenticationv1.ExtraValue{"scope": {"x"}},
	}
	api.allowed["jane"] = true
	for range 3 {
		authorize(t, r, authenticate(t, r, "valid", "jane"), true)
		authenticate(t, r, "invalid", "")
	}
	wantTokens := []authenticationv1.TokenReviewSpec{{Token: "valid", Audiences: audiences.all}, {Token: "invalid", Audiences: audiences.all}}
	if diff := cmp.Diff(wantTokens, api.tokens); diff != "" {
		t.Errorf("TokenReviews (-want +got):\n%s", diff)
	}
	wantAccesses := []authorizationv1.SubjectAccessReviewSpec{{
		User: "jane", UID: "7", Groups: []string{"a", "b"}, Extra: map[string]authorizationv1.ExtraValue{"scope": {"x"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Verb: "invoke", Group: "serving.knative.dev", Resource: "services", Namespace: "default", Name: "hello",
		},
	}}
	if diff := cmp.Diff(wantAccesses, api.accesses); diff != "" {
		t.Errorf("SubjectAccessReviews (-want +got):\n%s", diff)
	}

	// Access is revoked, then granted again.
	delete(api.allowed, "jane")
	clock.Step(TTL - time.Second)
	authorize(t, r, authenticate(t, r, "valid", "jane"), true)
	clock.Step(time.Second)
	authorize(t, r, authenticate(t, r, "valid", "jane"), false)
	api.allowed["jane"] = true
	clock.Step(TTL - time.Second)
	authorize(t, r, authenticate(t, r, "valid", "jane"), false)
	clock.Step(time.Second)
	authorize(t, r, authenticate(t, r, "valid", "jane"), true)

	// The token is revoked, and another becomes valid.
	delete(api.users, "valid")
	api.users["invalid"] = authenticationv1.UserInfo{Username: "joe"}
	clock.Step(TTL)
	authenticate(t, r, "valid", "")
	authenticate(t, r, "invalid", "joe")
}

// Decisions depend on the audience, which the API must confirm, and on all properties of the user.
func TestDistinct(t *testing.T) {
	r, api, _ := newReviews()
	api.users["valid"] = authenticationv1.UserInfo{Username: "jane"}
	authenticate(t, r, "valid", "jane")
	if _, err := r.Authenticate(t.Context(), "default", []byte("valid"), NewAudiences("http://third.example.com")); !errors.Is(err, ErrInvalidToken) {
		t.Errorf("other audience: got %v, want %v", err, ErrInvalidToken)
	}
	api.intended = nil
	if _, err := r.Authenticate(t.Context(), "default", []byte("valid"), NewAudiences(audience)); !errors.Is(err, ErrInvalidToken) {
		t.Errorf("authenticator without audiences: got %v, want %v", err, ErrInvalidToken)
	}
	api.intended = []string{audience}
	api.users["nameless"] = authenticationv1.UserInfo{UID: "1"}
	authenticate(t, r, "nameless", "")

	infos := []authenticationv1.UserInfo{
		{Username: "a", UID: "b"}, {Username: "ab"}, {Username: "a", Groups: []string{"b"}}, {Username: "a", Groups: []string{"b", "c"}},
		{Username: "a", Groups: []string{"bc"}}, {Username: "a", Extra: map[string]authenticationv1.ExtraValue{"b": {"c"}}},
		{Username: "a", Extra: map[string]authenticationv1.ExtraValue{"b": nil, "c": nil}},
	}
	seen := map[any]int{}
	for i := range infos {
		digest := newUser(&infos[i]).digest
		if other, ok := seen[digest]; ok {
			t.Errorf("users %+v and %+v are not distinguished", infos[i], infos[other])
		}
		seen[digest] = i
	}
}

// Values that cannot be tokens cause no review.
func TestMalformed(t *testing.T) {
	r, api, _ := newReviews()
	for _, token := range []string{"", " ", "a b", "a,b", "a=b", "=", "ä", "a\x00", "a\r\n", strings.Repeat("a", maxToken+1)} {
		authenticate(t, r, token, "")
	}
	if tokens, _ := api.asked(); tokens != 0 {
		t.Errorf("%d TokenReviews, want none", tokens)
	}
	longest := strings.Repeat("a", maxToken-2) + "=="
	api.users[longest] = authenticationv1.UserInfo{Username: "jane"}
	authenticate(t, r, longest, "jane")
}

// Concurrent callers share a review, also if the first one is canceled.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, api, _ := newReviews()
		api.users["valid"] = authenticationv1.UserInfo{Username: "jane"}
		api.wait = make(chan struct{})
		first, leave := context.WithCancel(t.Context())
		left := make(chan error)
		go func() {
			_, err := r.Authenticate(first, "default", []byte("valid"), audiences)
			left <- err
		}()
		synctest.Wait()
		users := make(chan *User)
		const others = 5
		for range others {
			go func() {
				user, err := r.Authenticate(t.Context(), "default", []byte("valid"), audiences)
				if err != nil {
					t.Error(err)
				}
				users <- user
			}()
		}
		synctest.Wait()
		leave()
		var unavailable *UnavailableError
		if err := <-left; !errors.As(err, &unavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("canceled caller: got %v", err)
		}
		close(api.wait)
		for range others {
			if user := <-users; user == nil || user.Name != "jane" {
				t.Errorf("got %+v, want jane", user)
			}
		}
		if tokens, _ := api.asked(); tokens != 1 {
			t.Errorf("%d TokenReviews, want 1", tokens)
		}
	})
}

// Failures are typed and not cached, and name no token.
func TestUnavailable(t *testing.T) {
	r, api, _ := newReviews()
	api.users["valid"] = authenticationv1.UserInfo{Username: "jane"}
	user := newUser(&authenticationv1.UserInfo{Username: "jane"})
	cause := errors.New("no connection")
	api.err = cause
	_, err := r.Authenticate(t.Context(), "default", []byte("valid"), audiences)
	_, accessErr := r.Authorize(t.Context(), user, invoke)
	for _, err := range []error{err, accessErr} {
		var unavailable *UnavailableError
		if !errors.As(err, &unavailable) || !errors.Is(err, cause) || strings.Contains(err.Error(), "valid") {
			t.Errorf("got %v, want an UnavailableError for %v", err, cause)
		}
	}
	api.err, api.allowed["jane"] = nil, true
	authorize(t, r, authenticate(t, r, "valid", "jane"), true)
}

// A review that the API does not answer ends.
func TestTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, api, _ := newReviews()
		api.wait = make(chan struct{})
		if _, err := r.Authenticate(t.Context(), "default", []byte("valid"), audiences); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// Invalid tokens cause a bounded number of reviews, by namespace and in all. Callers with a cached decision and known callers are
// not affected, and a rejection evicts no acceptance.
func TestFlood(t *testing.T) {
	r, api, clock := newReviews()
	api.users["valid"] = authenticationv1.UserInfo{Username: "jane"}
	api.allowed["jane"] = true
	authorize(t, r, authenticate(t, r, "valid", "jane"), true)
	limited, n := 0, 0
	flood := func(namespace string, times int) {
		for range times {
			n++
			_, err := r.Authenticate(t.Context(), namespace, fmt.Appendf(nil, "invalid%d", n), audiences)
			var unavailable *UnavailableError
			if errors.As(err, &unavailable) && errors.Is(err, ErrLimited) {
				limited++
			} else if !errors.Is(err, ErrInvalidToken) {
				t.Fatal(err)
			}
		}
	}
	reviews := func() int {
		tokens, _ := api.asked()
		return tokens
	}
	flood("default", 10*namespaceBurst)
	if got := reviews(); got != namespaceBurst || limited != 9*namespaceBurst+1 {
		t.Errorf("%d TokenReviews for one namespace, %d limited; want %d", got, limited, namespaceBurst)
	}
	for i := range 20 {
		flood(fmt.Sprintf("namespace%d", i), namespaceBurst)
	}
	if got := reviews(); got != unknownBurst {
		t.Errorf("%d TokenReviews in all, want %d", got, unknownBurst)
	}
	clock.Step(time.Second)
	flood("default", 1000)
	if got := reviews(); got != unknownBurst+namespaceRate {
		t.Errorf("%d TokenReviews after a second, want %d", got, unknownBurst+namespaceRate)
	}
	authorize(t, r, authenticate(t, r, "valid", "jane"), true)
	// The next review of a known caller.
	clock.Step(TTL)
	flood("default", 10*namespaceBurst)
	flood("other", 10*namespaceBurst)
	flood("third", 10*namespaceBurst)
	flood("fourth", 10*namespaceBurst)
	authorize(t, r, authenticate(t, r, "valid", "jane"), true)

	for range 2 * maxDecisions / namespaceBurst {
		clock.Step(2 * time.Second)
		flood("default", namespaceBurst)
	}
	if got := len(r.rejected.Keys()); got > maxDecisions {
		t.Errorf("%d cached rejections, want at most %d", got, maxDecisions)
	}
}

// Known callers of one namespace, with any number of valid tokens, do not use up the reviews of the callers of another one, and may use the
// rest of the limit.
func TestFloodOfKnown(t *testing.T) {
	r, _, clock := newReviews()
	n := 0
	flood := func(times int) (reviewed int) {
		for range times {
			n++
			hostile := newUser(&authenticationv1.UserInfo{Username: fmt.Sprintf("hostile%d", n)})
			_, err := r.Authorize(t.Context(), hostile, Access{Verb: "invoke", Namespace: "hostile", Name: "any"})
			if err == nil {
				reviewed++
			} else if !errors.Is(err, ErrLimited) {
				t.Fatal(err)
			}
		}
		return reviewed
	}
	quiet := func(times int) {
		t.Helper()
		for range times {
			n++
			authorize(t, r, newUser(&authenticationv1.UserInfo{Username: fmt.Sprintf("quiet%d", n)}), false)
		}
	}
	if got := flood(2 * knownBurst); got < knownBurst/2 || got >= knownBurst {
		t.Errorf("%d reviews for one namespace, want half of %d or a little more", got, knownBurst)
	}
	quiet(shareBurst)
	clock.Step(time.Second)
	if got := flood(knownRate); got < shareRate || got > knownRate {
		t.Errorf("%d reviews for one namespace in a second, want at least its share of %d", got, shareRate)
	}
	quiet(shareRate)
}

// Reviews that the API does not answer are bounded too.
func TestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, api, _ := newReviews()
		api.wait = make(chan struct{})
		results := make(chan error, maxInFlight+1)
		for i := range maxInFlight + 1 {
			go func() {
				_, err := r.Authenticate(t.Context(), "default", fmt.Appendf(nil, "token%d", i), audiences)
				results <- err
			}()
		}
		synctest.Wait()
		if tokens, _ := api.asked(); tokens != maxInFlight {
			t.Errorf("%d concurrent TokenReviews, want %d", tokens, maxInFlight)
		}
		if err := <-results; !errors.Is(err, ErrLimited) {
			t.Errorf("got %v, want %v", err, ErrLimited)
		}
		close(api.wait)
		synctest.Wait()
	})
}

// A large identity is not cached, for the cache's bound on memory.
func TestLargeIdentity(t *testing.T) {
	r, api, _ := newReviews()
	api.users["valid"] = authenticationv1.UserInfo{Username: "jane", Groups: []string{strings.Repeat("g", maxUser)}}
	authenticate(t, r, "valid", "jane")
	authenticate(t, r, "valid", "jane")
	if tokens, _ := api.asked(); tokens != 2 {
		t.Errorf("%d TokenReviews, want 2", tokens)
	}
}

// The cache holds no token.
func TestKeys(t *testing.T) {
	r, api, _ := newReviews()
	const token = "a-token-that-nobody-may-see"
	api.users[token] = authenticationv1.UserInfo{Username: "jane"}
	authenticate(t, r, token, "jane")
	for _, key := range r.accepted.Keys() {
		if reflect.TypeOf(key) != reflect.TypeFor[[32]byte]() {
			t.Errorf("the key is a %T", key)
		}
	}
	if strings.Contains(fmt.Sprintf("%+v", r.accepted), token) {
		t.Error("the cache holds the token")
	}
}

// TestTokensAreNotLogged checks that a client of an API logs no token, at any level.
func TestTokensAreNotLogged(t *testing.T) {
	const token = "a-token-that-nobody-may-see"
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if body, err := io.ReadAll(r.Body); err != nil || !strings.Contains(string(body), token) {
			t.Errorf("the body of the TokenReview is %q, %v", body, err)
		}
		w.WriteHeader(http.StatusInternalServerError)
	}))
	defer server.Close()
	client, err := authenticationclient.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var log strings.Builder
	logged := func() bool {
		mu.Lock()
		defer mu.Unlock()
		return strings.Contains(log.String(), token)
	}
	ctx := klog.NewContext(t.Context(), funcr.New(func(prefix, args string) {
		mu.Lock()
		defer mu.Unlock()
		log.WriteString(prefix + args + "\n")
	}, funcr.Options{Verbosity: 10}))
	if _, err := New(Options{Tokens: client.TokenReviews()}).Authenticate(ctx, "default", []byte(token), audiences); err == nil || strings.Contains(err.Error(), token) {
		t.Errorf("the error is %v", err)
	}
	if logged() {
		t.Errorf("the log has the token: %s", &log)
	}
	review := &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}
	client.TokenReviews().Create(ctx, review, metav1.CreateOptions{}) //nolint:errcheck // the server fails
	if !logged() {
		t.Error("the client does not log the bodies of requests: this test proves nothing")
	}
}

func BenchmarkCached(b *testing.B) {
	r, api, _ := newReviews()
	r.options.Clock = testingclock.NewFakeClock(time.Now())
	token := []byte(strings.Repeat("0123456789", 100))
	api.users[string(token)] = authenticationv1.UserInfo{Username: "system:serviceaccount:default:caller", Groups: []string{"system:serviceaccounts"}}
	api.allowed["system:serviceaccount:default:caller"] = true
	user, err := r.Authenticate(b.Context(), "default", token, audiences)
	if err != nil {
		b.Fatal(err)
	}
	if _, err := r.Authorize(b.Context(), user, invoke); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		user, _, known := r.Authenticated(token, audiences)
		if !known {
			b.Fatal("not cached")
		}
		if allowed, known := r.Authorized(user, invoke); !allowed || !known {
			b.Fatal("not cached")
		}
	}
}

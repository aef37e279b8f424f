package tokens

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// fakeAPI issues the tokens token-1, token-2 and so on, and accepts those for the audience "api" itself.
type fakeAPI struct {
	mu       sync.Mutex
	requests []*authenticationv1.TokenRequest
	// err fails all requests, delay delays them.
	err   error
	delay time.Duration
	// token replaces the issued tokens.
	token string
	// audiences are the audiences of the issued tokens.
	audiences map[string]string
	// unverified makes reviews without an error authenticate nobody, as while the API cannot read its keys or ServiceAccounts; unreviewed fails them.
	unverified bool
	unreviewed error
	reviews    int
}

func (f *fakeAPI) RequestToken(ctx context.Context, _ types.NamespacedName, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	f.mu.Lock()
	f.requests = append(f.requests, request)
	n, err, delay, token := len(f.requests), f.err, f.delay, f.token
	f.mu.Unlock()
	select {
	case <-time.After(delay):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	if token == "" {
		token = fmt.Sprintf("token-%d", n)
	}
	answer := request.DeepCopy()
	lifetime := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
	answer.Status = authenticationv1.TokenRequestStatus{Token: token, ExpirationTimestamp: metav1.NewTime(time.Now().Add(lifetime))}
	f.mu.Lock()
	if f.audiences == nil {
		f.audiences = map[string]string{}
	}
	f.audiences[token] = request.Spec.Audiences[0]
	f.mu.Unlock()
	return answer, nil
}

func (f *fakeAPI) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reviews++
	if f.unreviewed != nil {
		return nil, f.unreviewed
	}
	review = review.DeepCopy()
	intended := review.Spec.Audiences
	if len(intended) == 0 {
		intended = []string{"api"}
	}
	if audience := f.audiences[review.Spec.Token]; slices.Contains(intended, audience) && !f.unverified {
		review.Status.Authenticated, review.Status.Audiences = true, []string{audience}
	} else {
		review.Status.Error = "invalid bearer token"
	}
	return review, nil
}

func (f *fakeAPI) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

func (f *fakeAPI) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.requests)
}

func keyFor(audience string) Key {
	return Key{Namespace: "shop", Account: eventing.Account{Name: "orders", UID: "u"}, Audience: audience}
}

// run calls fn with Tokens of a fake API in a bubble.
func run(t *testing.T, fn func(t *testing.T, api *fakeAPI, tokens *Tokens)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		api := &fakeAPI{}
		fn(t, api, New(Options{Requester: api, Reviewer: api}))
		synctest.Wait()
	})
}

// want fails unless Get returns a token.
func want(t *testing.T, tokens *Tokens, key Key, token string) {
	t.Helper()
	if got, err := tokens.Get(t.Context(), key); err != nil || got != token {
		t.Errorf("got token %q, %v; want %q", got, err, token)
	}
}

// TestRenewal: a token is requested once, for an hour, and renewed in the background before it expires.
func TestRenewal(t *testing.T) {
	run(t, func(t *testing.T, api *fakeAPI, tokens *Tokens) {
		key := keyFor("a")
		want(t, tokens, key, "token-1")
		<-time.After(Lifetime/2 + time.Minute)
		want(t, tokens, key, "token-1")
		if r := api.requests[0].Spec; api.count() != 1 || len(r.Audiences) != 1 || r.Audiences[0] != "a" || *r.ExpirationSeconds != 3600 {
			t.Errorf("%d requests, the first is %+v", api.count(), r)
		}
		<-time.After(Lifetime / 3)
		// Still valid, and renewed meanwhile.
		want(t, tokens, key, "token-1")
		synctest.Wait()
		want(t, tokens, key, "token-2")
		want(t, tokens, keyFor("b"), "token-3")
		other := key
		other.Account.UID = "later"
		want(t, tokens, other, "token-4")
	})
}

// TestRenewalFails: the last token is used until it expires, then none is returned until the API answers.
func TestRenewalFails(t *testing.T) {
	run(t, func(t *testing.T, api *fakeAPI, tokens *Tokens) {
		key := keyFor("a")
		want(t, tokens, key, "token-1")
		api.set(func() { api.err = errors.New(`Post "https://10.0.0.1/secret-path": connection refused`) })
		for range 57 {
			<-time.After(time.Minute)
			want(t, tokens, key, "token-1")
		}
		<-time.After(3 * time.Minute)
		before := api.count()
		var unavailable *UnavailableError
		for range 100 {
			token, err := tokens.Get(t.Context(), key)
			if !errors.As(err, &unavailable) || token != "" || unavailable.RetryAfter <= 0 || unavailable.RetryAfter > maxDelay {
				t.Fatalf("got %q, %v", token, err)
			}
		}
		if n := api.count() - before; n > 1 {
			t.Errorf("%d requests at once", n)
		}
		if text := unavailable.Error(); !strings.Contains(text, `ServiceAccount "shop/orders" for audience "a": the API is unavailable`) || strings.Contains(text, "10.0.0.1") {
			t.Errorf("error: %s", text)
		}
		api.set(func() { api.err = nil })
		<-time.After(unavailable.RetryAfter)
		want(t, tokens, key, fmt.Sprintf("token-%d", api.count()+1))
	})
}

// TestErrors covers answers of the API without a token that may be sent.
func TestErrors(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts"}, "orders", errors.New("secret detail"))
	for _, test := range []struct {
		name, audience, token, text string
		err                         error
		delay                       time.Duration
	}{
		{name: "forbidden", audience: "a", err: forbidden, text: "the API answers Forbidden"},
		{name: "slow", audience: "a", delay: time.Hour, text: "the API did not answer in time"},
		{name: "no header", audience: "a", token: "a\r\nb", text: "the API returned no valid token"},
		{name: "long", audience: "a", token: strings.Repeat("a", maxToken+1), text: "the API returned no valid token"},
		{name: "valid for the API", audience: "api", text: "tokens for an audience of the Kubernetes API are not sent"},
	} {
		t.Run(test.name, func(t *testing.T) {
			run(t, func(t *testing.T, api *fakeAPI, tokens *Tokens) {
				api.err, api.delay, api.token = test.err, test.delay, test.token
				start := time.Now()
				token, err := tokens.Get(t.Context(), keyFor(test.audience))
				if err == nil || token != "" || !strings.HasSuffix(err.Error(), ": "+test.text) {
					t.Errorf("got %q, %v; want %q", token, err, test.text)
				}
				if took := time.Since(start); took > timeout {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestMerged: concurrent calls share one request, which a canceled caller does not end.
func TestMerged(t *testing.T) {
	run(t, func(t *testing.T, api *fakeAPI, tokens *Tokens) {
		api.delay = time.Second
		canceled, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() {
			if _, err := tokens.Get(canceled, keyFor("a")); !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		for range 100 {
			running.Go(func() { want(t, tokens, keyFor("a"), "token-1") })
		}
		running.Wait()
		if n := api.count(); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

// TestBounds: a namespace cannot use up the requests in flight, nor can tokens use up the memory.
func TestBounds(t *testing.T) {
	run(t, func(t *testing.T, api *fakeAPI, tokens *Tokens) {
		api.delay = time.Second
		var running sync.WaitGroup
		var mu sync.Mutex
		busy := 0
		for i := range 3 * maxNamespaceInFlight {
			running.Go(func() {
				if _, err := tokens.Get(t.Context(), keyFor(fmt.Sprint(i))); errors.Is(err, errBusy) {
					mu.Lock()
					defer mu.Unlock()
					busy++
				} else if err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		other := keyFor("a")
		other.Namespace = "other"
		running.Go(func() {
			if _, err := tokens.Get(t.Context(), other); err != nil {
				t.Errorf("another namespace: %v", err)
			}
		})
		running.Wait()
		if busy != 2*maxNamespaceInFlight || api.count() != maxNamespaceInFlight+1 {
			t.Errorf("%d calls limited, %d requests", busy, api.count())
		}
		if len(tokens.entries.namespaces) != 2 || tokens.inFlight != 0 || tokens.entries.namespace("shop").inFlight != 0 {
			t.Errorf("%d requests are in flight", tokens.inFlight)
		}
	})
}

// TestRate: a namespace cannot make more than a bounded number of requests per second, and that does not affect others.
func TestRate(t *testing.T) {
	run(t, func(t *testing.T, api *fakeAPI, tokens *Tokens) {
		n := 0
		flood := func() (obtained int) {
			for range 2 * namespaceBurst {
				n++
				if _, err := tokens.Get(t.Context(), keyFor(fmt.Sprint(n))); err == nil {
					obtained++
				} else if !errors.Is(err, errBusy) {
					t.Fatal(err)
				}
			}
			return obtained
		}
		if got := flood(); got != namespaceBurst {
			t.Errorf("%d requests at once, want %d", got, namespaceBurst)
		}
		<-time.After(time.Second)
		if got := flood(); got != namespaceRate {
			t.Errorf("%d requests after a second, want %d", got, namespaceRate)
		}
		other := keyFor("a")
		other.Namespace = "other"
		want(t, tokens, other, fmt.Sprintf("token-%d", api.count()+1))
	})
}

// TestShares: a namespace with any number of tokens does not displace those of others, unless these have more or none was used for an hour. Their number is
// bounded.
func TestShares(t *testing.T) {
	c, now := newCache(maxTokens), time.Now()
	key := func(namespace string, i int) Key {
		k := keyFor(fmt.Sprint(i))
		k.Namespace = namespace
		return k
	}
	held := func(namespace string) (n int) {
		for i := range 3 * maxTokens {
			if c.get(key(namespace, i)) != nil {
				n++
			}
		}
		return n
	}
	for i := range 10 {
		c.use(key("small", i), now)
	}
	for i := range 2 * maxTokens {
		c.use(key("large", i), now)
	}
	if small, large := held("small"), held("large"); small != 10 || large != maxTokens-10 || c.count != maxTokens {
		t.Errorf("%d and %d entries, %d in all, want 10 and the rest", small, large, c.count)
	}
	if c.get(key("large", 2*maxTokens-1)) == nil || c.get(key("large", 0)) != nil {
		t.Error("the oldest entry is held instead of the newest")
	}
	for i := range maxTokens {
		c.use(key("next", i), now)
	}
	if small, large, next := held("small"), held("large"), held("next"); small != 10 || large < maxTokens/2-6 || next < maxTokens/2-6 {
		t.Errorf("%d, %d and %d entries, want 10 and equal parts of the rest", small, large, next)
	}
	now = now.Add(Lifetime)
	for i := range 10 {
		c.use(key("small", i), now)
	}
	c.use(key("small", 10), now)
	if n := held("small"); n != 11 || c.count != 11 || len(c.namespaces) != 1 {
		t.Errorf("%d entries of %d, want those that were used in the last hour", n, c.count)
	}
	// More namespaces than entries.
	for i := range maxTokens + 1 {
		c.use(key(fmt.Sprint(i), 0), now)
	}
	if c.count != maxTokens || len(c.namespaces) > maxTokens {
		t.Errorf("%d entries of %d namespaces, want %d", c.count, len(c.namespaces), maxTokens)
	}
}

// TestReviews: a token is not sent while the API cannot say whether it accepts it itself: if a review fails, or authenticates it for no audience at all.
func TestReviews(t *testing.T) {
	run(t, func(t *testing.T, api *fakeAPI, tokens *Tokens) {
		for text, fault := range map[string]func(){
			"the API is unavailable":                                func() { api.unreviewed = errors.New("no connection") },
			"the API does not recognize the token that it returned": func() { api.unverified = true },
		} {
			for _, audience := range []string{"a", "api"} {
				key := keyFor(audience)
				key.Account.UID = types.UID(text)
				api.set(fault)
				var unavailable *UnavailableError
				token, err := tokens.Get(t.Context(), key)
				if !errors.As(err, &unavailable) || unavailable.RetryAfter <= 0 || !strings.HasSuffix(err.Error(), ": "+text) || token != "" {
					t.Errorf("audience %s: got %q, %v, want %q", audience, token, err, text)
				}
				api.set(func() { api.unreviewed, api.unverified = nil, false })
				<-time.After(maxDelay)
				token, err = tokens.Get(t.Context(), key)
				if (audience == "api") != errors.Is(err, ErrAPIAudience) || (audience == "a") != (token != "") {
					t.Errorf("audience %s: got %q, %v after the fault", audience, token, err)
				}
			}
		}
	})
}

// TestRejected: a token that a recipient rejects is requested again, unless it is new.
func TestRejected(t *testing.T) {
	run(t, func(t *testing.T, _ *fakeAPI, tokens *Tokens) {
		key := keyFor("a")
		if tokens.Rejected(key, "token-1") {
			t.Error("an unknown token may be accepted")
		}
		want(t, tokens, key, "token-1")
		if tokens.Rejected(key, "token-1") {
			t.Error("a new token is requested again")
		}
		<-time.After(freshness)
		if !tokens.Rejected(key, "token-1") {
			t.Error("an old token is kept")
		}
		want(t, tokens, key, "token-2")
		if !tokens.Rejected(key, "token-1") {
			t.Error("another token is not tried")
		}
	})
}

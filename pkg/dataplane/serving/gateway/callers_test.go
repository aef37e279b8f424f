package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// reviewer answers reviews: the token "of-<user>" is valid for the audience "http://app", and all users but "mallory" may invoke the
// Service "app" in the namespace "default".
type reviewer struct {
	// down and usersDown are true while TokenReviews and SubjectAccessReviews fail.
	down, usersDown atomic.Bool
	tokens, users   atomic.Int64
}

func (r *reviewer) reviews() *reviews.Reviews {
	return reviews.New(reviews.Options{Tokens: tokenReviewer{r}, Access: accessReviewer{r}})
}

type tokenReviewer struct{ *reviewer }

func (r tokenReviewer) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	r.tokens.Add(1)
	if r.down.Load() {
		return nil, errors.New("down")
	}
	user, valid := strings.CutPrefix(review.Spec.Token, "of-")
	for _, audience := range review.Spec.Audiences {
		if audience == "http://app" {
			review.Status = authenticationv1.TokenReviewStatus{Authenticated: valid, User: authenticationv1.UserInfo{Username: user}, Audiences: []string{audience}}
		}
	}
	return review, nil
}

type accessReviewer struct{ *reviewer }

func (r accessReviewer) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	r.users.Add(1)
	if r.usersDown.Load() {
		return nil, errors.New("down")
	}
	want := authorizationv1.ResourceAttributes{Verb: "invoke", Group: "serving.knative.dev", Resource: "services", Namespace: "default", Name: "app"}
	review.Status.Allowed = *review.Spec.ResourceAttributes == want && review.Spec.User != "mallory"
	return review, nil
}

// restricted returns the route of the tests' application for callers with a permission.
func restricted() *routing.Route {
	route := routeTo("app", "app", routing.Target{Revision: key("r"), Percent: 100})
	route.Callers = &routing.Callers{Audiences: []string{"http://app", "http://app.default"}, Group: "serving.knative.dev", Resource: "services", Name: "app"}
	return route
}

// headers responds with the header of the request as JSON.
var headers = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
	drain(r.Body)
	for name := range r.Trailer {
		if strings.EqualFold(name, serving.UserHeader) {
			r.Header[name] = r.Trailer[name]
		}
	}
	json.NewEncoder(w).Encode(r.Header) //nolint:errcheck,errchkjson // the client may be gone
})

// userOf returns the fields of a header that name a user, in any spelling, and credentials.
func userOf(t *testing.T, body string) (users []string, authorization string) {
	t.Helper()
	header := http.Header{}
	if err := json.Unmarshal([]byte(body), &header); err != nil {
		t.Fatalf("%q: %v", body, err)
	}
	for name, values := range header {
		if strings.EqualFold(strings.ReplaceAll(name, "_", "-"), serving.UserHeader) {
			users = append(users, values...)
		}
	}
	return users, header.Get("Authorization")
}

// TestCallers covers the callers that reach a restricted host by each path, and the fields that the application gets.
func TestCallers(t *testing.T) {
	var reviewer reviewer
	onPaths(t, Options{Reviews: reviewer.reviews()}, headers, func(t *testing.T, b *bench, send func() *http.Request) {
		b.SetRoute(restricted())
		for _, test := range []struct {
			name          string
			authorization []string
			status        int
			// body is contained in the body of a rejection. user is what the application gets.
			body, user string
		}{
			{"no token", nil, 401, `this host needs the header "Authorization: Bearer <token>", with a token for the audience "http://app"`, ""},
			{"other scheme", []string{"Basic b2YtamFuZQ=="}, 401, "the token is not valid", ""},
			{"no space", []string{"Bearer"}, 401, "the token is not valid", ""},
			{"empty token", []string{"Bearer "}, 401, "the token is not valid", ""},
			{"two", []string{"Bearer of-jane", "Bearer of-joe"}, 401, "the token is not valid", ""},
			{"invalid", []string{"Bearer what"}, 401, "the token is not valid", ""},
			{"denied", []string{"Bearer of-mallory"}, 403, `needs the permission to invoke services.serving.knative.dev "app" in namespace "default"`, ""},
			{"allowed", []string{"Bearer of-jane"}, 200, "", "jane"},
			{"lower case", []string{"bearer of-jane"}, 200, "", "jane"},
		} {
			r := send()
			r.Header["Authorization"] = test.authorization
			r.Header.Set(serving.UserHeader, "admin")
			r.Header.Set("Knative_Serving_User", "admin")
			res, body := b.do(t, r)
			if res.StatusCode != test.status || !strings.Contains(body, test.body) {
				t.Errorf("%s: %s %q, want %d %q", test.name, res.Status, body, test.status, test.body)
			}
			if got := res.Header.Get("WWW-Authenticate"); strings.HasPrefix(got, `Bearer realm="http://app"`) != (test.status == 401) {
				t.Errorf("%s: WWW-Authenticate %q", test.name, got)
			}
			if res.StatusCode != http.StatusOK {
				continue
			}
			if users, authorization := userOf(t, body); len(users) != 1 || users[0] != test.user || authorization != "" {
				t.Errorf("%s: users %q, authorization %q", test.name, users, authorization)
			}
		}
	})
}

// TestCallersOfAlias checks that an alias of a restricted host is restricted too.
func TestCallersOfAlias(t *testing.T) {
	var reviewer reviewer
	onPaths(t, Options{Reviews: reviewer.reviews()}, headers, func(t *testing.T, b *bench, send func() *http.Request) {
		b.SetRoute(restricted())
		mapped(b.Gateway, "www.example.org", "app", "app")
		for authorization, want := range map[string]int{"": 401, "Bearer of-mallory": 403, "Bearer of-jane": 200} {
			r := send()
			r.Host = "www.example.org"
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			if res, body := b.do(t, r); res.StatusCode != want {
				t.Errorf("with the authorization %q: %s %q, want %d", authorization, res.Status, body, want)
			}
		}
	})
}

// TestOpenHost checks that clients cannot name a user, and that the application of an open host gets their credentials.
func TestOpenHost(t *testing.T) {
	onPaths(t, Options{}, headers, func(t *testing.T, b *bench, send func() *http.Request) {
		r := send()
		r.Header.Set(serving.UserHeader, "admin")
		r.Header.Set("Knative_Serving-User", "admin")
		r.Header.Set("Authorization", "Bearer x")
		_, body := b.do(t, r)
		if users, authorization := userOf(t, body); len(users) != 0 || authorization != "Bearer x" {
			t.Errorf("users %q, authorization %q", users, authorization)
		}
	})
}

// TestUserTrailer checks that a trailer cannot name a user, either.
func TestUserTrailer(t *testing.T) {
	b := serve(t, Options{}, revision(0), headers)
	for _, name := range []string{"Knative-Serving-User", "knative_serving_user"} {
		answer := talk(t, b, "POST / HTTP/1.1\r\nHost: app\r\nConnection: close\r\nTransfer-Encoding: chunked\r\nTrailer: "+name+"\r\n\r\n1\r\na\r\n0\r\n"+name+": admin\r\n\r\n")
		if strings.Contains(answer, "admin") {
			t.Errorf("%s reaches the application: %q", name, answer)
		}
	}
}

// TestCallersUnavailable checks that only restricted hosts depend on reviews, and that a rejected request activates nothing.
func TestCallersUnavailable(t *testing.T) {
	for _, f := range forwarders {
		t.Run(f.name, func(t *testing.T) {
			var reviewer reviewer
			reviewer.down.Store(true)
			var activated atomic.Int64
			b := serve(t, Options{Reviews: reviewer.reviews(), StandardOnly: f.standardOnly, Activate: func(routing.Key) { activated.Add(1) }}, revision(0), nil)
			b.SetRoute(restricted())
			r := b.request(t, http.MethodGet, nil)
			r.Header.Set("Authorization", "Bearer of-jane")
			if res, body := b.do(t, r); res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") != "1" {
				t.Errorf("%s %q while reviews fail", res.Status, body)
			}
			reviewer.down.Store(false)
			reviewer.usersDown.Store(true)
			if res, body := b.do(t, r.Clone(t.Context())); res.StatusCode != http.StatusServiceUnavailable || reviewer.users.Load() == 0 {
				t.Errorf("%s %q while SubjectAccessReviews fail", res.Status, body)
			}
			if res, body := b.do(t, b.request(t, http.MethodGet, nil)); res.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s %q without token", res.Status, body)
			}
			if n := activated.Load(); n != 0 {
				t.Errorf("rejected requests activated the Revision %d times", n)
			}
			b.SetInstances(key("r"), []workload.Instance{{Name: "i", Address: listen(t, headers)}})
			b.SetRoute(routeTo("app", "app", routing.Target{Revision: key("r"), Percent: 100}))
			if res, body := b.do(t, b.request(t, http.MethodGet, nil)); res.StatusCode != http.StatusOK {
				t.Errorf("%s %q of the open host", res.Status, body)
			}
		})
	}
}

// TestFloodOfTokens checks that requests with invalid tokens cause a bounded number of reviews, and affect neither open hosts nor callers whose
// decision is cached.
func TestFloodOfTokens(t *testing.T) {
	var reviewer reviewer
	b := serve(t, Options{Reviews: reviewer.reviews()}, revision(0), headers)
	b.SetRoute(restricted())
	b.SetRoute(&routing.Route{Key: key("open"), Hosts: []routing.Host{{Name: "open", Targets: []routing.Target{{Revision: key("r"), Percent: 100}}}}})
	call := func(host, token string) int {
		t.Helper()
		r := b.request(t, http.MethodGet, nil)
		r.Host = host
		r.Header.Set("Authorization", "Bearer "+token)
		res, _ := b.do(t, r)
		return res.StatusCode
	}
	if code := call("app", "of-jane"); code != http.StatusOK {
		t.Fatalf("a caller gets %d", code)
	}
	before, start := reviewer.tokens.Load(), time.Now()
	const flood = 1000
	codes := map[int]int{}
	for i := range flood {
		codes[call("app", fmt.Sprintf("invalid-%d", i))]++
	}
	// The rate of one namespace is 50 a second, and 100 at once.
	reviews, most := reviewer.tokens.Load()-before, 100+50*int64(time.Since(start)/time.Second+1)
	if reviews > most || codes[http.StatusUnauthorized]+codes[http.StatusServiceUnavailable] != flood || int64(codes[http.StatusUnauthorized]) != reviews {
		t.Errorf("%d reviews, want at most %d; responses by code: %v", reviews, most, codes)
	}
	if code := call("open", "invalid"); code != http.StatusOK {
		t.Errorf("the open host responds %d", code)
	}
	if code := call("app", "of-jane"); code != http.StatusOK {
		t.Errorf("a known caller gets %d", code)
	}
}

// TestCallersOfUpgrades checks that a WebSocket is checked when it starts.
func TestCallersOfUpgrades(t *testing.T) {
	var reviewer reviewer
	b := serve(t, Options{Reviews: reviewer.reviews()}, revision(0), upgrading(func(conn net.Conn, _ io.Reader) { conn.Close() }))
	b.SetRoute(restricted())
	for authorization, want := range map[string]int{"": http.StatusUnauthorized, "Bearer of-jane": http.StatusSwitchingProtocols} {
		conn, err := net.Dial("tcp", b.address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		fmt.Fprintf(conn, "GET / HTTP/1.1\r\nHost: app\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n")
		if authorization != "" {
			fmt.Fprintf(conn, "Authorization: %s\r\n", authorization)
		}
		fmt.Fprint(conn, "\r\n")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // closing the connection suffices
		if err != nil || res.StatusCode != want {
			t.Errorf("authorization %q: %v, %v, want %d", authorization, res, err, want)
		}
	}
}

// TestCallersOfOtherReplicas checks that the replica that receives a request checks it, and forwards the user to the owner of the Revision,
// which does not check it again.
func TestCallersOfOtherReplicas(t *testing.T) {
	owner, other := ownerAndOther("a", "b")
	all := serveReplicas(t, revision(2), []workload.Instance{{Name: "i", Address: listen(t, headers)}}, nil, []string{"a", "b"}, "a", "b")
	var atOwner, atOther reviewer
	all[owner].options.Reviews, all[other].options.Reviews = atOwner.reviews(), atOther.reviews()
	for _, r := range all {
		r.SetRoute(restricted())
	}
	for _, test := range []struct {
		token string
		want  int
	}{{"", 401}, {"of-mallory", 403}, {"of-jane", 200}, {"of-jane", 200}} {
		r := all[other].request(t, http.MethodPost, strings.NewReader("x"))
		r.Header.Set(serving.UserHeader, "admin")
		if test.token != "" {
			r.Header.Set("Authorization", "Bearer "+test.token)
		}
		res, body := all[other].do(t, r)
		if res.StatusCode != test.want {
			t.Errorf("token %q: %s %q", test.token, res.Status, body)
		}
		if res.StatusCode != http.StatusOK {
			continue
		}
		if users, authorization := userOf(t, body); fmt.Sprint(users) != "[jane]" || authorization != "" {
			t.Errorf("users %q, authorization %q", users, authorization)
		}
	}
	if n := atOther.tokens.Load(); n != 2 {
		t.Errorf("%d TokenReviews, want 2", n)
	}
	if n := atOwner.tokens.Load(); n != 0 {
		t.Errorf("%d TokenReviews of the owner, want none", n)
	}
}

// TestUserNames covers names that are not valid in a header.
func TestUserNames(t *testing.T) {
	for name, want := range map[string]string{
		"system:serviceaccount:default:a": "system:serviceaccount:default:a",
		"jane@example.com":                "jane@example.com",
		"a\r\nX: b":                       "a%0D%0AX:%20b",
		"100%":                            "100%25",
		"jürgen":                          "j%C3%BCrgen",
	} {
		if got := string(serving.AppendUser(nil, name)); got != want {
			t.Errorf("%q is sent as %q, want %q", name, got, want)
		}
	}
}

// TestServeService covers requests by the API: they reach hosts of the Service's own Route only, on behalf of the user whom the API
// server has authorized, and the response cannot change the state of browsers for the API's origin.
func TestServeService(t *testing.T) {
	var reviewer reviewer
	b := serve(t, Options{Reviews: reviewer.reviews()}, revision(0), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Set-Cookie", "a=b")
		w.Header().Set("Access-Control-Allow-Origin", "*")
		w.Header().Set("X-Custom", "kept")
		headers(w, r)
	}))
	b.SetRoute(restricted())
	send := func(service routing.Key, host string) (reply, string) {
		t.Helper()
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Host = host
			b.ServeService(w, r, service, "jane") //nolint:contextcheck // forwarder.Wait returns the context
		}))
		defer api.Close()
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, api.URL+"/x", strings.NewReader("body"))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set(serving.UserHeader, "admin")
		res, err := api.Client().Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return reply{StatusCode: res.StatusCode, Status: res.Status, Header: res.Header}, string(body)
	}
	res, body := send(key("app"), "app")
	if res.StatusCode != http.StatusOK {
		t.Fatalf("%s %q", res.Status, body)
	}
	if users, _ := userOf(t, body); len(users) != 1 || users[0] != "jane" {
		t.Errorf("users %q", users)
	}
	if h := res.Header; h.Get("Set-Cookie") != "" || h.Get("Access-Control-Allow-Origin") != "" || h.Get("X-Custom") != "kept" {
		t.Errorf("the client gets %v", h)
	}
	if n := reviewer.tokens.Load() + reviewer.users.Load(); n != 0 {
		t.Errorf("%d reviews, want none", n)
	}
	if res, body := send(key("other"), "app"); res.StatusCode != http.StatusNotFound {
		t.Errorf("host of another Route: %s %q", res.Status, body)
	}
	if res, body := send(key("app"), "unknown"); res.StatusCode != http.StatusNotFound {
		t.Errorf("unknown host: %s %q", res.Status, body)
	}
}

// redialed sends requests to a server, unless their address is not the server's.
type redialed struct {
	*httptest.Server
	attempts atomic.Int64
}

func (d *redialed) RoundTrip(r *http.Request) (*http.Response, error) {
	if d.attempts.Add(1); r.URL.Host != "192.0.2.1:8444" {
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	}
	out := r.Clone(r.Context())
	out.URL.Scheme, out.URL.Host = "http", d.Listener.Addr().String()
	return d.Client().Transport.RoundTrip(out)
}

// TestRemote covers requests of an API server without a gateway: any gateway that is reachable serves them like requests of its own process,
// on behalf of the user that the API server names. A user that the client names has no effect.
func TestRemote(t *testing.T) {
	var reviewer reviewer
	b := serve(t, Options{Reviews: reviewer.reviews()}, revision(0), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Target", r.RequestURI)
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != "body" {
			t.Errorf("the application gets %q, %v", body, err)
		}
		headers(w, r)
	}))
	b.SetRoute(restricted())
	peers := &redialed{Server: httptest.NewServer(http.StripPrefix("/"+ServicesElement, b.ServiceHandler()))}
	defer peers.Close()
	members := membership.NewView(membership.NewSet("api"))
	remote := &Remote{Gateways: members, Forward: peers}
	send := func(user string) *httptest.ResponseRecorder {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/a%2Fb?c=d", strings.NewReader("body"))
		r.Host = "app"
		r.Header.Set(userHeader, "admin")
		r.Header.Set(serving.UserHeader, "admin")
		w := httptest.NewRecorder()
		remote.ServeService(w, r, key("app"), user)
		return w
	}
	if w := send("jane"); w.Code != http.StatusServiceUnavailable || w.Header().Get("Retry-After") == "" {
		t.Errorf("without gateways: %d %q", w.Code, w.Body)
	}
	members.Set(membership.NewSet("api", membership.Member{Name: "g-0", Address: "192.0.2.2:8444"}))
	if w := send("jane"); w.Code != http.StatusServiceUnavailable {
		t.Errorf("without reachable gateways: %d %q", w.Code, w.Body)
	}
	members.Set(membership.NewSet("api", membership.Member{Name: "g-0", Address: "192.0.2.2:8444"}, membership.Member{Name: "g-1", Address: "192.0.2.1:8444"}))
	for range 20 {
		w := send("jane doe")
		if w.Code != http.StatusOK || w.Header().Get("X-Target") != "/a%2Fb?c=d" {
			t.Fatalf("%d %q, the application gets %q", w.Code, w.Body, w.Header().Get("X-Target"))
		}
		if users, _ := userOf(t, w.Body.String()); len(users) != 1 || users[0] != "jane%20doe" {
			t.Fatalf("users %q", users)
		}
	}
	if n := peers.attempts.Load(); n <= 21 || n > 41 {
		t.Errorf("%d attempts for 22 requests, want about 30", n)
	}
	if n := reviewer.tokens.Load() + reviewer.users.Load(); n != 0 {
		t.Errorf("%d reviews, want none", n)
	}
}

// failing fails the first requests after they were sent.
type failing struct {
	requests, failures int
}

// RoundTrip implements http.RoundTripper.
func (f *failing) RoundTrip(r *http.Request) (*http.Response, error) {
	if f.requests++; f.requests <= f.failures {
		return nil, &net.OpError{Op: "remote error", Err: errors.New("tls: unknown certificate authority")}
	}
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// TestRemoteRepeats tries another gateway after a failure if the request may have been received, unless that could change something twice.
func TestRemoteRepeats(t *testing.T) {
	members := membership.NewView(membership.NewSet("api"))
	members.Set(membership.NewSet("api", membership.Member{Name: "g-0", Address: "192.0.2.1:8444"}, membership.Member{Name: "g-1", Address: "192.0.2.2:8444"}))
	for _, test := range []struct {
		method, body    string
		failures        int
		code, forwarded int
	}{
		{http.MethodGet, "", 1, http.StatusOK, 2},
		{http.MethodHead, "", 1, http.StatusOK, 2},
		{http.MethodGet, "", 2, http.StatusBadGateway, 2},
		{http.MethodGet, "body", 1, http.StatusBadGateway, 1},
		{http.MethodPost, "", 1, http.StatusBadGateway, 1},
	} {
		f := &failing{failures: test.failures}
		w := httptest.NewRecorder()
		var body io.Reader = http.NoBody
		if test.body != "" {
			body = strings.NewReader(test.body)
		}
		(&Remote{Gateways: members, Forward: f}).ServeService(w, httptest.NewRequestWithContext(t.Context(), test.method, "/", body), key("app"), "jane")
		if w.Code != test.code || f.requests != test.forwarded {
			t.Errorf("%+v: %d after %d requests", test, w.Code, f.requests)
		}
	}
}

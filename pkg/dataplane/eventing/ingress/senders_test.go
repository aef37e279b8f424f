package ingress

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/senders"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// fakeSenders admits requests with the token "good".
type fakeSenders struct {
	unknown bool
	checks  int
}

// Restricted implements Senders.
func (f *fakeSenders) Restricted(eventing.Key) (restricted, known bool) { return true, !f.unknown }

// Check implements Senders.
func (f *fakeSenders) Check(_ context.Context, _ eventing.Key, authorization []string, _ []*event.Event) (string, error) {
	f.checks++
	if !slices.Equal(authorization, []string{"Bearer good"}) {
		return "", &senders.Rejection{Status: http.StatusUnauthorized, Challenge: "Bearer realm=\"x\"", Message: "no"}
	}
	return "system:serviceaccount:default:good", nil
}

// TestSenders covers the checks that precede the one of the sender, and its response.
func TestSenders(t *testing.T) {
	for name, test := range map[string]struct {
		method, path, token string
		pairs               []string
		code                int
	}{
		"allowed":              {token: "good", code: 202},
		"no token":             {code: 401},
		"invalid token":        {token: "bad", code: 401},
		"of another replica":   {pairs: []string{verifiedHeader, "true"}, code: 401},
		"OPTIONS":              {method: http.MethodOptions, code: 200},
		"another method":       {method: http.MethodGet, code: 405},
		"no stream's path":     {path: "/default", code: 404},
		"a stream's absence":   {path: "/default/absent", code: 404},
		"a malformed event":    {pairs: []string{"Ce-Id", ""}, code: 400},
		"malformed, but valid": {token: "good", pairs: []string{"Ce-Id", ""}, code: 400},
	} {
		t.Run(name, func(t *testing.T) {
			log := &memory{}
			o := options(log)
			o.Senders = &fakeSenders{}
			server := start(t, o)
			if test.path == "" {
				test.path = "/default/orders"
			}
			r := request(t, server.URL+test.path, nil, test.pairs...)
			if test.method != "" {
				r.Method = test.method
			}
			if test.token != "" {
				r.Header.Set("Authorization", "Bearer "+test.token)
			}
			got := do(t, r)
			if got.code != test.code || (len(log.accepted) > 0) != (test.code == 202) {
				t.Errorf("the answer is %d %s, want %d; accepted: %v", got.code, got.body, test.code, log.accepted)
			}
			if challenge := got.header.Get("WWW-Authenticate"); (challenge != "") != (got.code == 401) {
				t.Errorf("challenge of %d: %q", got.code, challenge)
			}
		})
	}
}

// TestTokensStayHere checks that neither tokens nor the decision about them travel with an event.
func TestTokensStayHere(t *testing.T) {
	var headers []string
	accept := func(_ context.Context, _ eventing.Key, events []*event.Event) error {
		for _, h := range events[0].Headers {
			headers = append(headers, h.Name)
		}
		return nil
	}
	for _, restricted := range []Senders{nil, &fakeSenders{}} {
		headers = nil
		server := start(t, Options{Accept: accept, Exists: exists, Senders: restricted})
		r := request(t, server.URL+"/default/orders", nil, "Authorization", "Bearer good", verifiedHeader, "true", "X-Request-Id", "1")
		if got := do(t, r); got.code != 202 {
			t.Fatalf("the answer is %d %s", got.code, got.body)
		}
		if diff := cmp.Diff([]string{"x-request-id"}, headers); diff != "" {
			t.Errorf("headers of the event (-want +got):\n%s", diff)
		}
	}
}

// TestOrigin covers the origin of events that clients send, who cannot choose it.
func TestOrigin(t *testing.T) {
	for name, restricted := range map[string]Senders{"": nil, "system:serviceaccount:default:good": &fakeSenders{}} {
		var origin trace.Origin
		server := start(t, Options{Exists: exists, Senders: restricted, Accept: func(ctx context.Context, _ eventing.Key, events []*event.Event) error {
			origin = trace.OriginOf(ctx)
			if len(events[0].Headers) > 0 {
				t.Errorf("the event has the headers %v", events[0].Headers)
			}
			return nil
		}})
		r := request(t, server.URL+"/default/orders", nil, "Authorization", "Bearer good", originHeader, "name=admin&address=10.0.0.1")
		if got := do(t, r); got.code != 202 {
			t.Fatalf("the answer is %d %s", got.code, got.body)
		}
		if want := (trace.Origin{Sender: name, Address: "127.0.0.1"}); origin != want {
			t.Errorf("the event comes from %+v, want %+v", origin, want)
		}
	}
}

// forwards are peers that own every stream and keep the headers of requests.
type forwards struct{ headers []http.Header }

// Route implements Peers.
func (f *forwards) Route(to eventing.Key) (eventing.Key, bool) { return to, false }

// Forward implements Peers.
func (f *forwards) Forward(_ context.Context, _ string, _ eventing.Key, header http.Header, _ []byte) error {
	f.headers = append(f.headers, header.Clone())
	return nil
}

// TestForwardVerified checks that a sender is verified once: by the replica that receives the request, or by the owner if that replica does
// not have the stream yet.
func TestForwardVerified(t *testing.T) {
	for name, test := range map[string]struct {
		path     string
		unknown  bool
		token    string
		code     int
		verified string
	}{
		"verified":              {path: "/default/orders", token: "good", code: 202, verified: "true"},
		"rejected":              {path: "/default/orders", token: "bad", code: 401},
		"verified by the owner": {path: "/default/new", unknown: true, token: "bad", code: 202},
	} {
		t.Run(name, func(t *testing.T) {
			peers, from := &forwards{}, &fakeSenders{unknown: test.unknown}
			server := start(t, Options{Exists: exists, Peers: peers, Senders: from})
			r := request(t, server.URL+test.path, nil, "Authorization", "Bearer "+test.token, verifiedHeader, "spoofed")
			if got := do(t, r); got.code != test.code || (len(peers.headers) == 1) != (test.code == 202) {
				t.Fatalf("the answer is %d %s, want %d; forwarded: %v", got.code, got.body, test.code, peers.headers)
			}
			if test.code != 202 {
				return
			}
			token := ""
			if test.verified == "" {
				token = "Bearer " + test.token
			}
			header := peers.headers[0]
			if header.Get(verifiedHeader) != test.verified || header.Get("Authorization") != token {
				t.Errorf("forwarded %q, token %q", header.Get(verifiedHeader), header.Get("Authorization"))
			}

			// The owner accepts the decision of another replica, and decides itself without one.
			log, owner := &memory{}, &fakeSenders{}
			own := options(log)
			own.Senders, own.Exists = owner, func(eventing.Key) bool { return true }
			var origin trace.Origin
			own.Accept = func(ctx context.Context, _ eventing.Key, _ []*event.Event) error {
				origin = trace.OriginOf(ctx)
				return nil
			}
			recorder := httptest.NewRecorder()
			forwarded := httptest.NewRequestWithContext(t.Context(), http.MethodPost, test.path, strings.NewReader(""))
			forwarded.Header = header
			New(own).Forwarded().ServeHTTP(recorder, forwarded)
			want, checks := http.StatusAccepted, 0
			if test.verified == "" {
				want, checks = http.StatusUnauthorized, 1
			}
			if recorder.Code != want || owner.checks != checks {
				t.Errorf("the owner answers %d %s after %d checks, want %d after %d", recorder.Code, recorder.Body, owner.checks, want, checks)
			}
			if want := (trace.Origin{Sender: "system:serviceaccount:default:good", Address: "127.0.0.1"}); test.verified != "" && origin != want {
				t.Errorf("the owner accepts an event of %+v, want %+v", origin, want)
			}
		})
	}
}

package ingress

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// fakePeers are peers that own every stream and respond with err.
type fakePeers struct {
	err  error
	sent []string
}

func (e *fakePeers) Route(to eventing.Key) (eventing.Key, bool) { return to, false }

func (e *fakePeers) Forward(_ context.Context, method string, to eventing.Key, header http.Header, body []byte) error {
	e.sent = append(e.sent, method+" "+Path(to)+" "+header.Get("Ce-Id")+" "+string(body))
	return e.err
}

// TestForward checks that requests for streams of another replica are forwarded unchanged, with its response, even if the stream
// does not exist at this replica yet.
func TestForward(t *testing.T) {
	for name, test := range map[string]struct {
		path, body string
		err        error
		code       int
		sent       []string
	}{
		"accepted":                {path: "/default/orders", body: "x", code: 202, sent: []string{"POST /default/orders 1 x"}},
		"of a Channel":            {path: "/channels/default/orders/", body: "x", code: 202, sent: []string{"POST /channels/default/orders 1 x"}},
		"unknown at this replica": {path: "/default/new", body: "x", code: 202, sent: []string{"POST /default/new 1 x"}},
		"refused":                 {path: "/default/orders", err: &Refusal{Status: 413}, code: 413, sent: []string{"POST /default/orders 1 "}},
		"owned by now":            {path: "/default/orders", body: "x", err: ErrOwner, code: 204, sent: []string{"POST /default/orders 1 x"}},
		"no stream":               {path: "/default", code: 404},
		"too large":               {path: "/default/orders", body: strings.Repeat("x", 101), code: 413},
	} {
		t.Run(name, func(t *testing.T) {
			peers := &fakePeers{err: test.err}
			accept := func(context.Context, eventing.Key, []*event.Event) error { return &Refusal{Status: 204} }
			server := start(t, Options{Accept: accept, Exists: exists, Peers: peers, MaxBody: 100})
			if got := do(t, request(t, server.URL+test.path, strings.NewReader(test.body))); got.code != test.code {
				t.Errorf("the answer is %d %s, want %d", got.code, got.body, test.code)
			}
			if diff := cmp.Diff(test.sent, peers.sent); diff != "" {
				t.Errorf("forwarded (-want +got):\n%s", diff)
			}
		})
	}
}

// TestForwarded checks that a forwarded request is not forwarded a second time.
func TestForwarded(t *testing.T) {
	for name, test := range map[string]struct {
		path string
		err  error
		code int
	}{
		"owned":     {path: "/default/orders", code: 202},
		"not owned": {path: "/default/orders", err: eventing.ErrNotOwner, code: 421},
		"missing":   {path: "/default/missing", code: 404},
	} {
		t.Run(name, func(t *testing.T) {
			peers := &fakePeers{}
			accept := func(context.Context, eventing.Key, []*event.Event) error { return test.err }
			server := httptest.NewServer(New(Options{Accept: accept, Exists: exists, Peers: peers}).Forwarded())
			defer server.Close()
			if got := do(t, request(t, server.URL+test.path, nil)); got.code != test.code || len(peers.sent) > 0 {
				t.Errorf("the answer is %d, want %d; forwarded: %v", got.code, test.code, peers.sent)
			}
		})
	}
}

// TestForwardOptions checks that the owner reports whether a stream exists (eventing HTTP Verbs-3).
func TestForwardOptions(t *testing.T) {
	for name, test := range map[string]struct {
		path string
		err  error
		code int
		sent []string
	}{
		"exists at this replica": {path: "/default/orders", code: 200},
		"exists at the owner":    {path: "/default/new", code: 200, sent: []string{"OPTIONS /default/new 1 "}},
		"does not exist":         {path: "/default/new", err: &Refusal{Status: 404}, code: 404, sent: []string{"OPTIONS /default/new 1 "}},
		"owned by now":           {path: "/default/new", err: ErrOwner, code: 404, sent: []string{"OPTIONS /default/new 1 "}},
	} {
		t.Run(name, func(t *testing.T) {
			peers := &fakePeers{err: test.err}
			server := start(t, Options{Exists: exists, Peers: peers})
			r := request(t, server.URL+test.path, nil)
			r.Method = http.MethodOptions
			if got := do(t, r); got.code != test.code {
				t.Errorf("the answer is %d %s, want %d", got.code, got.body, test.code)
			}
			if diff := cmp.Diff(test.sent, peers.sent); diff != "" {
				t.Errorf("forwarded (-want +got):\n%s", diff)
			}
		})
	}
}

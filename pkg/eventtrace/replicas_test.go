package eventtrace

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// peers are the handlers of replicas by their addresses.
type peers map[string]http.Handler

// RoundTrip implements http.RoundTripper.
func (p peers) RoundTrip(r *http.Request) (*http.Response, error) {
	handler := p[r.URL.Host]
	if handler == nil {
		return nil, errors.New("connection refused")
	}
	recorder := httptest.NewRecorder()
	http.StripPrefix("/"+Element, handler).ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// TestReplicas finds the records of all replicas, and names those that do not answer.
func TestReplicas(t *testing.T) {
	f, other := newFixture(t), &fixture{T: t, store: newStore(t)}
	a := consumer(eventing.Trigger, "shop", "a")
	other.accepted(orders, "1", at(0), nil, a)
	other.accepted(orders, "2", at(0), nil, a)
	f.attempted(orders, "1", at(0), trace.Attempt{Consumer: a, Number: 1, Start: at(1), Code: 202})
	f.accepted(orders, "1", at(7), nil)
	replicas := func(members ...membership.Member) *Replicas {
		return &Replicas{
			Store: f.store, Peers: membership.NewView(membership.NewSet("self", members...)),
			Transport: peers{"other": (&Replicas{Store: other.store}).Handler(), "broken": http.NotFoundHandler()},
		}
	}
	self, second := membership.Member{Name: "self", Address: "self"}, membership.Member{Name: "other", Address: "other"}
	f.Source = replicas(self, second)
	records, incomplete, err := f.Source.Find(t.Context(), trace.Query{Namespace: "shop", Stream: orders, StreamUID: "orders", ID: "1", Source: "/s", Accepted: at(0)})
	if err != nil || len(incomplete) > 0 || len(records) != 2 {
		t.Errorf("got %+v, %q, %v", records, incomplete, err)
	}
	found, err := f.Trace(t.Context(), orders, &duckv1.EventTraceOptions{ID: "1"}, nil)
	if err != nil || len(found.Events) != 2 || found.Events[0].Unrecorded || len(found.Events[0].Deliveries) != 1 || found.Events[0].Deliveries[0].State != "Delivered" {
		t.Errorf("got %+v, %v", found, err)
	}

	f.Source = replicas(self, second, membership.Member{Name: "gone", Address: "gone"}, membership.Member{Name: "broken", Address: "broken"})
	found, err = f.Trace(t.Context(), orders, &duckv1.EventTraceOptions{ID: "1"}, nil)
	if want := []string{"replica broken does not answer", "replica gone does not answer"}; err != nil || len(found.Events) != 2 || !slices.Equal(found.Incomplete, want) {
		t.Errorf("got %d events, incomplete %q, %v; want %q", len(found.Events), found.Incomplete, err, want)
	}

	for range trace.MaxFound + 1 {
		other.accepted(orders, "many", at(0), nil)
	}
	f.Source = replicas(self, second)
	if _, incomplete, err := f.Source.Find(t.Context(), trace.Query{Namespace: "shop", ID: "many"}); err != nil || len(incomplete) != 1 {
		t.Errorf("incomplete %q, %v", incomplete, err)
	}
}

// TestHandler rejects malformed queries.
func TestHandler(t *testing.T) {
	for query, code := range map[string]int{"namespace=shop&id=1": 200, "namespace=shop": 500, "namespace=shop&id=1&accepted=x": 400} {
		recorder := httptest.NewRecorder()
		(&Replicas{Store: newStore(t)}).Handler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/?"+query, nil))
		if recorder.Code != code {
			t.Errorf("%s: got %d %s, want %d", query, recorder.Code, recorder.Body, code)
		}
	}
}

// TestQuery encodes and decodes queries.
func TestQuery(t *testing.T) {
	for _, q := range []trace.Query{
		{Namespace: "shop", ID: "a b&c", Source: "/s?x", Stream: letters, StreamUID: "uid", Accepted: at(1)},
		{Namespace: "shop", TraceID: "4bf92f3577b34da6a3ce929d0e0e4736"},
	} {
		if got, err := decode(encode(q)); err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("got %+v, %v; want %+v", got, err, q)
		}
	}
}

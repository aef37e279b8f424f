package objectmetrics

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

const exposed = `
# TYPE knative_gateway_requests_total counter
knative_gateway_requests_total{code="200",namespace="shop",revision="hello-1",service="hello"} 7
knative_gateway_requests_total{code="503",namespace="shop",revision="hello-2",service="hello"} 2
knative_gateway_requests_total{code="0",namespace="shop",revision="hello-2",service="hello"} 1
knative_gateway_requests_total{code="200",namespace="shop",revision="bare",service=""} 9
knative_gateway_requests_total{code="200",namespace="other",revision="hello-1",service="hello"} 5
# TYPE knative_gateway_request_duration_seconds histogram
knative_gateway_request_duration_seconds_bucket{namespace="shop",service="hello",le="+Inf"} 9
knative_gateway_request_duration_seconds_sum{namespace="shop",service="hello"} 1.5
knative_gateway_request_duration_seconds_count{namespace="shop",service="hello"} 9
# TYPE knative_eventing_events_delivered_total counter
knative_eventing_events_delivered_total{kind="Trigger",name="hello",namespace="shop"} 4
# TYPE knative_eventing_deliveries_in_flight gauge
knative_eventing_deliveries_in_flight{kind="Trigger",name="hello",namespace="shop"} 3
# TYPE go_goroutines gauge
go_goroutines 7
`

// newReader returns a reader of metrics, and counts how often they are collected.
func newReader(t *testing.T, clock *clocktesting.FakePassiveClock) (r *Reader, collected *int) {
	t.Helper()
	collected = new(int)
	return &Reader{Name: "a", Start: clock.Now(), Clock: clock, Gather: func() (families []*dto.MetricFamily, err error) {
		*collected++
		parser := expfmt.NewTextParser(model.UTF8Validation)
		byName, err := parser.TextToMetricFamilies(strings.NewReader(exposed))
		for _, family := range byName {
			families = append(families, family)
		}
		return families, err
	}}, collected
}

var (
	shop = map[Object]map[Field]float64{
		{"Service", "shop", "hello"}: {Requests: 10, Failures: 3, Responses: 9, Seconds: 1.5},
		{"Trigger", "shop", "hello"}: {Delivered: 4, InFlight: 3},
	}
	other = Object{"Service", "other", "hello"}
)

func valuesOf(r *Replica) map[Object]map[Field]float64 {
	found := map[Object]map[Field]float64{}
	for _, e := range r.Entries {
		found[e.Object] = e.Values
	}
	return found
}

// TestRead sums the series of each object, and collects metrics at most once a second.
func TestRead(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r, collected := newReader(t, clock)
	all, incomplete, err := r.Read(t.Context(), "shop")
	if err != nil || len(all) != 1 || len(incomplete) != 0 || all[0].Name != "a" {
		t.Fatalf("read %+v, %v, %v", all, incomplete, err)
	}
	if diff := cmp.Diff(shop, valuesOf(&all[0])); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if all, _, err = r.Read(t.Context(), ""); err != nil || len(all[0].Entries) != len(shop)+1 || valuesOf(&all[0])[other][Requests] != 5 {
		t.Errorf("of all namespaces: %+v, %v", all, err)
	}
	if *collected != 1 {
		t.Errorf("collected %d times, want once", *collected)
	}
	clock.SetTime(clock.Now().Add(fresh))
	if _, _, err = r.Read(t.Context(), "shop"); err != nil || *collected != 2 {
		t.Errorf("collected %d times, %v; want again after a second", *collected, err)
	}
	r.Gather = func() ([]*dto.MetricFamily, error) { return nil, errors.New("broken") }
	clock.SetTime(clock.Now().Add(fresh))
	if _, _, err = r.Read(t.Context(), "shop"); err == nil {
		t.Error("no error without metrics")
	}
}

// replicas answers requests to replicas by their handlers.
type replicas map[string]http.Handler

func (h replicas) RoundTrip(r *http.Request) (*http.Response, error) {
	handler := h[r.URL.Host]
	if handler == nil {
		return nil, errors.New("unreachable")
	}
	recorder := httptest.NewRecorder()
	http.StripPrefix("/"+Element, handler).ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// TestReadPeers reads the metrics of other replicas, and names the ones that do not answer.
func TestReadPeers(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	r, _ := newReader(t, clock)
	peer, _ := newReader(t, clocktesting.NewFakePassiveClock(clock.Now().Add(-time.Hour)))
	var members []membership.Member
	for _, name := range []string{"a", "b", "gone", "broken"} {
		members = append(members, membership.Member{Name: name, Address: name})
	}
	r.Peers = membership.NewView(membership.NewSet("a", members...))
	r.Transport = replicas{"b": peer.Handler(), "broken": http.NotFoundHandler()}
	all, incomplete, err := r.Read(t.Context(), "shop")
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Name != "b" || !all[1].Start.Equal(peer.Start) {
		t.Fatalf("read %+v, %v", all, err)
	}
	if diff := cmp.Diff(shop, valuesOf(&all[1])); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if diff := cmp.Diff([]string{"replica broken does not answer", "replica gone does not answer"}, incomplete); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

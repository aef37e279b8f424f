// Package objectmetrics reads how many requests and events each object had, from the metrics of this replica and of others.
package objectmetrics

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// Element begins the paths by which replicas read the metrics of each other. Handler serves them.
	Element = "objectmetrics"
	// fresh is how long the metrics of this process are used again: collecting them takes time that grows with the number of objects.
	fresh = time.Second
	// peerTimeout bounds the answer of another replica.
	peerTimeout = 5 * time.Second
	// maxPeerAnswer bounds the metrics of another replica, in bytes.
	maxPeerAnswer = 64 << 20
)

// Field is a value of an object.
type Field string

// The fields of Services, then those of Brokers, Triggers, Channels and Subscriptions.
const (
	Requests  Field = "requests"
	Failures  Field = "failures"
	Responses Field = "responses"
	// Seconds is the sum of the durations of Responses.
	Seconds Field = "seconds"

	Accepted     Field = "accepted"
	Matched      Field = "matched"
	Delivered    Field = "delivered"
	Retries      Field = "retries"
	DeadLettered Field = "deadLettered"
	Dropped      Field = "dropped"
	InFlight     Field = "inFlight"
	// Oldest is the age of the oldest undelivered event, in seconds.
	Oldest Field = "oldest"
)

const (
	requestsFamily = "knative_gateway_requests_total"
	durationFamily = "knative_gateway_request_duration_seconds"
	serviceKind    = "Service"
)

// eventFamilies are the metrics with the labels kind, namespace and name.
var eventFamilies = map[string]Field{
	"knative_eventing_events_accepted_total": Accepted, "knative_eventing_events_matched_total": Matched, "knative_eventing_events_delivered_total": Delivered,
	"knative_eventing_delivery_retries_total": Retries, "knative_eventing_events_dead_lettered_total": DeadLettered, "knative_eventing_events_dropped_total": Dropped,
	"knative_eventing_deliveries_in_flight": InFlight, "knative_eventing_oldest_undelivered_event_seconds": Oldest,
}

// Object is a Service, Broker, Trigger, Channel or Subscription.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// Entry has the values of an object. Fields that are 0 may be missing.
type Entry struct {
	Object
	Values map[Field]float64 `json:"values"`
}

// Replica has the metrics of the objects that a replica counts.
type Replica struct {
	Name string `json:"name"`
	// Start is the time at which the replica started.
	Start   time.Time `json:"start"`
	Entries []Entry   `json:"entries"`
}

// Reader reads the metrics of all replicas. Its methods may be called concurrently.
type Reader struct {
	// Name is the name of this replica, Start the time at which it started.
	Name  string
	Start time.Time
	// Gather collects the metrics of this process.
	Gather func() ([]*dto.MetricFamily, error)
	// Peers are all replicas; nil if this is the only one. Transport sends requests to them.
	Peers     *membership.View
	Transport http.RoundTripper
	Clock     clock.PassiveClock

	// mu guards the fields below: the metrics of this process at a time, by namespace.
	mu       sync.Mutex
	at       time.Time
	gathered map[string][]Entry
}

// Read returns the metrics of the objects of a namespace at all replicas, of all namespaces if it is empty. A replica that does not answer within
// 5 seconds makes the result incomplete.
func (r *Reader) Read(ctx context.Context, namespace string) (all []Replica, incomplete []string, err error) {
	var mu sync.Mutex
	wait := peer.AskOthers(r.Peers, func(to membership.Member) error {
		replica, err := r.ask(ctx, to, namespace)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		all = append(all, *replica)
		return nil
	})
	own, err := r.own(namespace)
	incomplete = wait()
	if err != nil {
		return nil, nil, err
	}
	all = append(all, *own)
	slices.SortFunc(all, func(a, b Replica) int { return strings.Compare(a.Name, b.Name) })
	return all, incomplete, nil
}

// ask reads the metrics of another replica.
func (r *Reader) ask(ctx context.Context, member membership.Member, namespace string) (*Replica, error) {
	ctx, cancel := context.WithTimeout(ctx, peerTimeout)
	defer cancel()
	replica := &Replica{}
	err := peer.Call{Method: http.MethodGet, Path: "/" + Element, Query: url.Values{"namespace": {namespace}}, Read: func(body io.Reader) error {
		return json.NewDecoder(io.LimitReader(body, maxPeerAnswer)).Decode(replica)
	}}.Do(ctx, r.Transport, member)
	replica.Name = member.Name
	return replica, err
}

// Handler returns the handler of reads by other replicas, below Element.
func (r *Reader) Handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		own, err := r.own(request.URL.Query().Get("namespace"))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(own) //nolint:errcheck,errchkjson // the other replica finds out
	})
}

// own returns the metrics of this process.
func (r *Reader) own(namespace string) (*Replica, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if now := r.Clock.Now(); r.gathered == nil || now.Sub(r.at) >= fresh {
		families, err := r.Gather()
		// Metrics of other packages may conflict with each other.
		if len(families) == 0 && err != nil {
			return nil, fmt.Errorf("collect metrics: %w", err)
		}
		r.at, r.gathered = now, byNamespace(families)
	}
	replica := &Replica{Name: r.Name, Start: r.Start, Entries: r.gathered[namespace]}
	if namespace == "" {
		for _, entries := range r.gathered {
			replica.Entries = append(replica.Entries, entries...)
		}
	}
	return replica, nil
}

// byNamespace returns the values of all objects by their namespace.
func byNamespace(families []*dto.MetricFamily) map[string][]Entry {
	objects := map[Object]map[Field]float64{}
	add := func(o Object, field Field, value float64) {
		if objects[o] == nil {
			objects[o] = map[Field]float64{}
		}
		objects[o][field] += value
	}
	for _, family := range families {
		field, ofEvents := eventFamilies[family.GetName()]
		if !ofEvents && family.GetName() != requestsFamily && family.GetName() != durationFamily {
			continue
		}
		for _, m := range family.GetMetric() {
			labels := labelsOf(m)
			service := Object{Kind: serviceKind, Namespace: labels["namespace"], Name: labels["service"]}
			switch {
			case ofEvents:
				add(Object{Kind: labels["kind"], Namespace: labels["namespace"], Name: labels["name"]}, field, m.GetCounter().GetValue()+m.GetGauge().GetValue())
			case service.Name == "":
				// A Revision without a Service.
			case family.GetName() == durationFamily:
				add(service, Responses, float64(m.GetHistogram().GetSampleCount()))
				add(service, Seconds, m.GetHistogram().GetSampleSum())
			default:
				add(service, Requests, m.GetCounter().GetValue())
				// 0 is the code of a request without a response.
				if code, err := strconv.Atoi(labels["code"]); err == nil && (code == 0 || code >= http.StatusInternalServerError) {
					add(service, Failures, m.GetCounter().GetValue())
				}
			}
		}
	}
	found := map[string][]Entry{}
	for o, values := range objects {
		found[o.Namespace] = append(found[o.Namespace], Entry{o, values})
	}
	return found
}

func labelsOf(m *dto.Metric) map[string]string {
	labels := make(map[string]string, len(m.GetLabel()))
	for _, l := range m.GetLabel() {
		labels[l.GetName()] = l.GetValue()
	}
	return labels
}

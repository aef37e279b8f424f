package eventtail

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tail"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

var orders = eventing.Key{Kind: eventing.Broker, Namespace: "shop", Name: "orders"}

// replica is a replica that accepts events of the Brokers that it owns.
type replica struct {
	*Tails
	view   *membership.View
	exists atomic.Bool
}

// plain sends requests to test servers without TLS.
type plain struct{}

func (plain) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.URL.Scheme = "http"
	return http.DefaultTransport.RoundTrip(r)
}

// newReplicas returns two replicas that know each other.
func newReplicas(t *testing.T) (replicas [2]*replica) {
	t.Helper()
	var members []membership.Member
	for i := range replicas {
		r := &replica{Tails: &Tails{Hub: &tail.Hub{}, Transport: plain{}}}
		r.exists.Store(true)
		r.Exists = func(eventing.Key) bool { return r.exists.Load() }
		replicas[i] = r
		server := httptest.NewServer(http.StripPrefix("/"+Element, http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) { r.Handler().ServeHTTP(w, request) })))
		// Requests end with the tails.
		t.Cleanup(func() { r.Hub.Stop(); server.Close() })
		members = append(members, membership.Member{Name: fmt.Sprint("replica-", i), Address: server.Listener.Addr().String()})
	}
	for i, r := range replicas {
		r.view = membership.NewView(membership.NewSet(members[i].Name, members...))
		r.Owners, r.Partitions = ownership.NewTable(r.view, streams.Place), func(eventing.Key) int { return 1 }
	}
	return replicas
}

// owned returns the replicas, first the owner of a Broker.
func owned(t *testing.T, replicas [2]*replica) (owner, other *replica) {
	t.Helper()
	if replicas[0].Owners.Owns(orders) {
		return replicas[0], replicas[1]
	}
	return replicas[1], replicas[0]
}

// lines opens a tail until the test ends, and returns a function that returns its next line.
func lines(t *testing.T, r *replica, options eventingv1.BrokerTailOptions) func() string {
	t.Helper()
	stream, err := r.Tail(t.Context(), orders, &options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	reader := bufio.NewReader(stream)
	next := func() string {
		line, err := reader.ReadString('\n')
		if err != nil {
			return err.Error()
		}
		return line
	}
	if first := next(); !strings.HasPrefix(first, `{"startedAt":"`) {
		t.Errorf("the first line is %s", first)
	}
	return next
}

func (r *replica) offer(id string) {
	r.Hub.Offer(orders, &event.Event{Data: []byte(`"x"`), Attributes: []event.Attribute{{Name: "id", Value: id}, {Name: "source", Value: "/"}, {Name: "type", Value: "t"}}}, time.Now())
}

// TestReplicas shows the events of a Broker at its owner and at another replica, with filter and data.
func TestReplicas(t *testing.T) {
	owner, other := owned(t, newReplicas(t))
	for _, r := range []*replica{owner, other} {
		headers, whole := lines(t, r, eventingv1.BrokerTailOptions{Filter: "id = '2'"}), lines(t, r, eventingv1.BrokerTailOptions{Data: true})
		owner.offer("1")
		owner.offer("2")
		for _, check := range []struct {
			next func() string
			want string
		}{{whole, `"id":"1","source":"/","type":"t","data":"x"}`}, {whole, `"id":"2","source":"/","type":"t","data":"x"}`}, {headers, `"id":"2","source":"/","type":"t"}`}} {
			if got := check.next(); !strings.Contains(got, check.want) {
				t.Errorf("got %s, want %s", got, check.want)
			}
		}
	}
}

// TestPartitions shows the events of a Broker whose partitions have different owners, also at a replica that owns none, until one of them stops.
func TestPartitions(t *testing.T) {
	owner, other := owned(t, newReplicas(t))
	for _, r := range []*replica{owner, other} {
		r.Partitions = func(eventing.Key) int { return 2 }
	}
	for _, r := range []*replica{owner, other} {
		next := lines(t, r, eventingv1.BrokerTailOptions{})
		for id, accepting := range map[string]*replica{"1": owner, "2": other} {
			accepting.offer(id)
			if got := next(); !strings.Contains(got, `"id":"`+id+`"`) {
				t.Errorf("got %s, want event %s", got, id)
			}
		}
		other.Hub.End(orders)
		if got := next(); !strings.HasPrefix(got, `{"gap":`) {
			t.Errorf("got %s", got)
		}
	}
}

// TestHandover continues at the next owner, with a line about the gap, and ends with the Broker.
func TestHandover(t *testing.T) {
	replicas := newReplicas(t)
	owner, other := owned(t, replicas)
	next := lines(t, other, eventingv1.BrokerTailOptions{})
	owner.offer("1")
	if got := next(); !strings.Contains(got, `"id":"1"`) {
		t.Errorf("got %s", got)
	}
	other.view.Set(membership.NewSet(other.view.Current().Self(), membership.Member{Name: other.view.Current().Self()}))
	owner.Hub.End(orders)
	if got := next(); !strings.HasPrefix(got, `{"gap":`) {
		t.Errorf("got %s", got)
	}
	other.offer("2")
	if got := next(); !strings.Contains(got, `"id":"2"`) {
		t.Errorf("got %s", got)
	}
	other.exists.Store(false)
	other.Hub.End(orders)
	if got := next(); got != `{"end":"the Broker does not exist anymore"}`+"\n" {
		t.Errorf("got %s", got)
	}
	if got := next(); got != io.EOF.Error() {
		t.Errorf("got %s", got)
	}
}

// TestErrors passes on the errors of the owner.
func TestErrors(t *testing.T) {
	owner, other := owned(t, newReplicas(t))
	for range tail.MaxOfNamespace {
		lines(t, other, eventingv1.BrokerTailOptions{})
	}
	for name, r := range map[string]*replica{"owner": owner, "other": other} {
		if _, err := r.Tail(t.Context(), orders, &eventingv1.BrokerTailOptions{}); !errors.Is(err, broker.ErrTooManyTails) || !strings.Contains(err.Error(), "8 tails of the namespace") {
			t.Errorf("one more at the %s: %v", name, err)
		}
		if _, err := r.Tail(t.Context(), orders, &eventingv1.BrokerTailOptions{Filter: "("}); err == nil || !strings.Contains(err.Error(), "parameter 'filter'") {
			t.Errorf("an invalid filter at the %s: %v", name, err)
		}
	}
	other.exists.Store(false)
	if _, err := other.Tail(t.Context(), orders, &eventingv1.BrokerTailOptions{}); !errors.Is(err, broker.ErrTailUnavailable) {
		t.Errorf("without the Broker: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	other.exists.Store(true)
	owner.Hub.Stop()
	time.AfterFunc(10*time.Millisecond, cancel)
	if _, err := other.Tail(ctx, orders, &eventingv1.BrokerTailOptions{}); err == nil {
		t.Error("a stopping owner showed events")
	}
}

// TestCancel closes the tail at the owner when the client goes.
func TestCancel(t *testing.T) {
	_, other := owned(t, newReplicas(t))
	for range 2 * tail.MaxOfNamespace {
		deadline := time.Now().Add(time.Minute)
		for {
			stream, err := other.Tail(t.Context(), orders, &eventingv1.BrokerTailOptions{})
			if err == nil {
				stream.Close()
				break
			}
			// The owner notices the end of the former ones soon.
			if time.Now().After(deadline) {
				t.Fatal(err)
			}
			<-time.After(time.Millisecond)
		}
	}
}

// TestClosedAtOnce covers clients that end their tails before they read anything, more than may be open at a time: none of them stays open.
func TestClosedAtOnce(t *testing.T) {
	owner, other := owned(t, newReplicas(t))
	for _, r := range []*replica{owner, other} {
		for range 100 {
			stream, err := r.Tail(t.Context(), orders, &eventingv1.BrokerTailOptions{})
			for deadline := time.Now().Add(10 * time.Second); errors.Is(err, broker.ErrTooManyTails) && time.Now().Before(deadline); {
				// The ones before end in the background.
				<-time.After(time.Millisecond)
				stream, err = r.Tail(t.Context(), orders, &eventingv1.BrokerTailOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
			stream.Close()
		}
	}
}

package eventing

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// tailLine is a line of the subresource tail.
type tailLine struct {
	StartedAt, AcceptedAt *time.Time
	Event                 *struct {
		ID, Type, KnativeBrokerTTL string
		Data                       json.RawMessage
	}
	Dropped  map[string]int64
	Gap, End string
}

// tail opens a tail of a Broker until the test ends, and returns its lines after the first one. They end with the stream.
func (s *server) tail(t *testing.T, namespace, broker string, parameters url.Values) (lines <-chan tailLine, cancel func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	path := fmt.Sprintf("/apis/eventing.knative.dev/v1/namespaces/%s/brokers/%s/tail?%s", namespace, broker, parameters.Encode())
	stream, err := s.Knative.EventingV1().RESTClient().Get().RequestURI(path).Stream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stream.Close() })
	read := make(chan tailLine, 10_000)
	started := make(chan struct{})
	go func() {
		defer close(read)
		scanner := bufio.NewScanner(stream)
		for scanner.Scan() {
			var line tailLine
			if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
				t.Errorf("%s: %v", scanner.Text(), err)
				return
			}
			if line.StartedAt != nil {
				close(started)
				continue
			}
			read <- line
		}
	}()
	select {
	case <-started:
	case <-bounded(t).Done():
		t.Fatal("the tail does not start")
	}
	return read, cancel
}

// next returns the next line of a tail.
func next(t *testing.T, lines <-chan tailLine) tailLine {
	t.Helper()
	select {
	case line, open := <-lines:
		if !open {
			t.Fatal("the tail has ended")
		}
		return line
	case <-bounded(t).Done():
		t.Fatal("there is no further line")
	}
	return tailLine{}
}

// TestTail shows accepted events live, with a filter and with data, until the Broker is deleted.
func TestTail(t *testing.T) {
	ns := namespace()
	orders := shared.broker(t, ns, "orders")
	all, _ := shared.tail(t, ns, "orders", url.Values{"data": {"true"}})
	some, _ := shared.tail(t, ns, "orders", url.Values{"filter": {"type = 'paid'"}})
	mustPost(t, orders, event{id: "1", kind: "created"}, event{id: "2", kind: "paid"})
	for _, want := range []string{"1", "2"} {
		if line := next(t, all); line.Event == nil || line.Event.ID != want || len(line.Event.Data) == 0 || line.AcceptedAt == nil || line.Event.KnativeBrokerTTL != "" {
			t.Errorf("got %+v, want event %s", line.Event, want)
		}
	}
	if line := next(t, some); line.Event == nil || line.Event.ID != "2" || len(line.Event.Data) > 0 {
		t.Errorf("got %+v", line.Event)
	}
	if err := shared.Knative.EventingV1().Brokers(ns).Delete(t.Context(), "orders", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, lines := range map[string]<-chan tailLine{"all": all, "some": some} {
		if line := next(t, lines); !strings.Contains(line.End, "does not exist anymore") {
			t.Errorf("%s: got %+v", name, line)
		}
		if line, open := <-lines; open {
			t.Errorf("%s: got %+v after the end", name, line)
		}
	}
}

// TestTailFlood reports the events that a tail does not show, while all of them are accepted and delivered.
func TestTailFlood(t *testing.T) {
	ns, count := namespace(), 1000
	sink := harness.NewSink(t)
	orders, subscriber := shared.broker(t, ns, "orders"), sink.At("/all")
	shared.trigger(t, ns, "orders", "all", subscriber.URL)
	lines, _ := shared.tail(t, ns, "orders", nil)
	events := numbered("e", "created", count)
	mustPost(t, orders, events...)
	if err := subscriber.AwaitAll(bounded(t), ids(events)); err != nil {
		t.Fatal(err)
	}
	shown, dropped := 0, int64(0)
	for int64(shown)+dropped < int64(count) {
		line := next(t, lines)
		if line.Event != nil {
			shown++
		}
		for _, n := range line.Dropped {
			dropped += n
		}
	}
	if int64(shown)+dropped != int64(count) || shown == 0 {
		t.Errorf("%d events were shown, %d dropped", shown, dropped)
	}
}

// TestTailRequests rejects bad parameters, too many tails, and forgets canceled ones.
func TestTailRequests(t *testing.T) {
	ns := namespace()
	shared.broker(t, ns, "orders")
	path := "/apis/eventing.knative.dev/v1/namespaces/" + ns + "/brokers/orders/tail"
	for query, want := range map[string]string{
		"?filter=type+%3D": "parameter 'filter' must be a CloudEvents SQL expression",
		"?data=yes":        "parameter 'data' must be 'true' or 'false'",
		"?filtre=x":        "unknown parameter 'filtre'; valid parameters are filter, data",
	} {
		if r := shared.Do(t, harness.Request{Method: http.MethodGet, Path: path + query}); r.Code != http.StatusBadRequest || !strings.Contains(string(r.Body), want) {
			t.Errorf("%s: %d %s, want %s", query, r.Code, r.Body, want)
		}
	}
	if r := shared.Do(t, harness.Request{Method: http.MethodGet, Path: strings.Replace(path, "orders", "none", 1)}); r.Code != http.StatusNotFound {
		t.Errorf("without the Broker: %d %s", r.Code, r.Body)
	}
	const limit = 8
	var cancels []func()
	for range limit {
		_, cancel := shared.tail(t, ns, "orders", nil)
		cancels = append(cancels, cancel)
	}
	if r := shared.Do(t, harness.Request{Method: http.MethodGet, Path: path}); r.Code != http.StatusTooManyRequests || r.Header.Get("Retry-After") == "" {
		t.Errorf("one more: %d %s", r.Code, r.Body)
	}
	for _, cancel := range cancels {
		cancel()
	}
	harness.Eventually(t, "canceled tails are closed", func() error {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		stream, err := shared.Knative.EventingV1().RESTClient().Get().RequestURI(path).Stream(ctx)
		if err != nil {
			return err
		}
		return stream.Close()
	})
}

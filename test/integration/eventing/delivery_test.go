package eventing

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// rawSubscriber responds to events with the bytes of a test, and closes the connection.
type rawSubscriber struct {
	// URL returns its address.
	URL string

	mu       sync.Mutex
	attempts map[string]int // guarded by mu; requests by the event's id
}

// newRawSubscriber starts a subscriber that responds to each event with the entry of answers for its ID.
func newRawSubscriber(t *testing.T, answers map[string]string) *rawSubscriber {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	s := &rawSubscriber{URL: "http://" + listener.Addr().String() + "/", attempts: map[string]int{}}
	go func() {
		for {
			connection, err := listener.Accept()
			if err != nil {
				return // the test has ended
			}
			go s.serve(connection, answers)
		}
	}()
	return s
}

func (s *rawSubscriber) serve(connection net.Conn, answers map[string]string) {
	defer connection.Close()
	request, err := http.ReadRequest(bufio.NewReader(connection))
	if err != nil {
		return // a connection that the sender did not use
	}
	if _, err := io.Copy(io.Discard, request.Body); err != nil || request.Method != http.MethodPost {
		return // no attempt is recorded
	}
	id := request.Header.Get("Ce-Id")
	s.mu.Lock()
	s.attempts[id]++
	s.mu.Unlock()
	_, _ = io.WriteString(connection, answers[id]) // the sender may have read enough
}

// seen returns the number of requests with an event.
func (s *rawSubscriber) seen(id string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attempts[id]
}

// outcome is the result of an event for one response of the subscriber.
type outcome struct {
	retried, failed bool
	// code is the code of the dead letter, empty without a response.
	code string
}

const deliveryRetry = 2

// expectOutcomes waits until all events reached their final state, and compares their outcomes.
func expectOutcomes(t *testing.T, want map[string]outcome, attempts func(id string) int, dead *harness.Subscriber) {
	t.Helper()
	var failed []string
	for id, o := range want {
		if o.failed {
			failed = append(failed, id)
		}
	}
	if err := dead.AwaitAll(bounded(t), failed); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "each event is sent", func() error {
		for id := range want {
			if attempts(id) == 0 {
				return fmt.Errorf("%s is not", id)
			}
		}
		return nil
	})
	for id, o := range want {
		requests := 1
		if o.retried {
			requests += deliveryRetry
		}
		if n := attempts(id); n != requests {
			t.Errorf("%s: %d attempts, want %d", id, n, requests)
		}
	}
	for _, d := range dead.Deliveries() {
		e := read(t, d)
		if o := want[d.ID]; !o.failed || e.attributes["knativeerrorcode"] != o.code {
			t.Errorf("%s is a dead letter with code %q, want the code of %+v", d.ID, e.attributes["knativeerrorcode"], o)
		}
	}
}

// consumers are the two kinds of consumers.
var consumers = []struct {
	name string
	// consume creates a Broker or Channel that delivers to a subscriber, and returns its address.
	consume func(t *testing.T, namespace, subscriber string, options *duckv1.DeliverySpec) string
}{
	{"Trigger", func(t *testing.T, namespace, subscriber string, options *duckv1.DeliverySpec) string {
		t.Helper()
		address := shared.broker(t, namespace, "orders")
		shared.trigger(t, namespace, "orders", "orders", subscriber, delivered(options))
		return address
	}},
	{"Subscription", func(t *testing.T, namespace, subscriber string, options *duckv1.DeliverySpec) string {
		t.Helper()
		address := shared.channel(t, namespace, "orders")
		shared.subscribe(t, newSubscription(namespace, "orders", "orders", to(uri(subscriber)), with(options)))
		return address
	}},
}

// TestDeliveryCodes checks for each row of the table of response codes whether the event is retried, and whether it becomes a
// dead letter (eventing Event Acknowledgement and Delivery Retry-3 and -7, eventing Event Delivery-3, -4 and -8).
// It covers eventing Event Acknowledgement and Delivery Retry-8 to -17.
func TestDeliveryCodes(t *testing.T) {
	rows := map[string]outcome{}
	for _, code := range []int{200, 201, 202, 203, 204, 205, 206, 299} {
		rows[strconv.Itoa(code)] = outcome{}
	}
	for _, code := range []int{300, 301, 302, 303, 304, 307, 308, 399, 400, 401, 402, 403, 405, 406, 410, 411, 412, 413, 415, 418, 422, 425, 426, 451, 499} {
		rows[strconv.Itoa(code)] = outcome{failed: true, code: strconv.Itoa(code)}
	}
	for _, code := range []int{404, 408, 409, 429, 500, 501, 502, 503, 504, 505, 511, 599} {
		rows[strconv.Itoa(code)] = outcome{failed: true, retried: true, code: strconv.Itoa(code)}
	}
	rows["no-answer"] = outcome{failed: true, retried: true}
	rows["no-event"] = outcome{}
	answers := map[string]harness.Answer{
		"no-answer": {Drop: true},
		"no-event":  {Code: http.StatusOK, Body: "thanks"},
	}
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			t.Parallel()
			sink := harness.NewSink(t)
			subscriber, dead, other := sink.At("/"), sink.At("/dead"), sink.At("/other")
			subscriber.Answer(func(d *harness.Delivery) harness.Answer {
				if a, found := answers[d.ID]; found {
					return a
				}
				code, _ := strconv.Atoi(d.ID) // 0 is answered with 202, which then is an error
				return harness.Answer{Code: code, Header: http.Header{"Location": {other.URL}}}
			})
			address := consumer.consume(t, namespace(), subscriber.URL, deadTo(uri(dead.URL), retries(deliveryRetry, "PT0.05S")))
			for id := range rows {
				mustPost(t, address, event{id: id, kind: "order"})
			}
			expectOutcomes(t, rows, func(id string) int { return subscriber.Attempts()[id] }, dead)
			if n := other.Requests(); n > 0 {
				t.Errorf("a redirection was followed by %d requests", n)
			}
		})
	}
}

// TestDeliveryTimeout checks that an attempt ends after delivery.timeout without a response, and is retried like one with an
// error. The dead letter has no code.
func TestDeliveryTimeout(t *testing.T) {
	t.Parallel()
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			t.Parallel()
			sink := harness.NewSink(t)
			subscriber, dead := sink.At("/"), sink.At("/dead")
			subscriber.Answer(func(*harness.Delivery) harness.Answer { return harness.Answer{Delay: time.Hour} })
			options := deadTo(uri(dead.URL), retries(deliveryRetry, "PT0.05S"))
			options.Timeout = ptr.To("PT5S")
			address := consumer.consume(t, namespace(), subscriber.URL, options)
			mustPost(t, address, event{id: "too-late", kind: "order"})
			if e := read(t, deliveryOf(t, dead, "too-late")); e.attributes["knativeerrorcode"] != "" {
				t.Errorf("the dead letter is %+v, want one without a code", e)
			}
			// On a slow machine, an attempt may end before its request is sent.
			if err := subscriber.AwaitAttempts(bounded(t), func(attempts map[string]int) error {
				if n := attempts["too-late"]; n < deliveryRetry {
					return fmt.Errorf("%d attempts, want %d", n, 1+deliveryRetry)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if n := subscriber.Attempts()["too-late"]; n > 1+deliveryRetry {
				t.Errorf("%d attempts, want %d", n, 1+deliveryRetry)
			}
		})
	}
}

// TestDeliveryInterimCodes checks that a final 1xx response is an error that is not retried, and that an interim one is ignored
// (eventing Event Acknowledgement and Delivery Retry-3) (eventing HTTP Verbs-1). All events are sent by POST.
// It covers eventing Event Acknowledgement and Delivery Retry-17.
func TestDeliveryInterimCodes(t *testing.T) {
	const accepted = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
	const unavailable = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"
	rows := map[string]struct {
		answer string
		outcome
	}{
		"100":          {"HTTP/1.1 100 Continue\r\n\r\n", outcome{failed: true, code: "100"}},
		"101":          {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n", outcome{failed: true, code: "101"}},
		"102":          {"HTTP/1.1 102 Processing\r\n\r\n", outcome{failed: true, code: "102"}},
		"103":          {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n", outcome{failed: true, code: "103"}},
		"199":          {"HTTP/1.1 199 \r\n\r\n", outcome{failed: true, code: "199"}},
		"100-then-202": {"HTTP/1.1 100 Continue\r\n\r\n" + accepted, outcome{}},
		"103-then-202": {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + accepted, outcome{}},
		"102-then-503": {"HTTP/1.1 102 Processing\r\n\r\n" + unavailable, outcome{failed: true, retried: true, code: "503"}},
		"no-HTTP":      {"SSH-2.0-x\r\n", outcome{failed: true, retried: true}},
		"nothing":      {"", outcome{failed: true, retried: true}},
	}
	answers, want := map[string]string{}, map[string]outcome{}
	for id, row := range rows {
		answers[id], want[id] = row.answer, row.outcome
	}
	for _, consumer := range consumers {
		t.Run(consumer.name, func(t *testing.T) {
			t.Parallel()
			subscriber, dead := newRawSubscriber(t, answers), harness.NewSink(t).At("/")
			address := consumer.consume(t, namespace(), subscriber.URL, deadTo(uri(dead.URL), retries(deliveryRetry, "PT0.05S")))
			for id := range rows {
				mustPost(t, address, event{id: id, kind: "order"})
			}
			expectOutcomes(t, want, subscriber.seen, dead)
		})
	}
}

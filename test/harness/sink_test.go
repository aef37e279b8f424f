package harness

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// send posts an event to a sink and returns the status of the response.
func send(ctx context.Context, url, contentType, id, body string) (int, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		return 0, err
	}
	request.Header.Set("Content-Type", contentType)
	if id != "" {
		request.Header.Set("Ce-Id", id)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, err
	}
	return response.StatusCode, response.Body.Close()
}

func TestSinkRecords(t *testing.T) {
	s := NewSink(t).At("/orders")
	s.Answer(func(d *Delivery) Answer {
		switch {
		case d.ID == "slow":
			return Answer{Delay: time.Millisecond, Code: http.StatusOK, Header: http.Header{"Ce-Id": {"reply"}}, Body: "reply"}
		case d.ID == "refused" && d.Attempt == 1:
			return Answer{Code: http.StatusServiceUnavailable}
		case d.ID == "dropped":
			return Answer{Drop: true}
		}
		return Answer{}
	})
	for _, tt := range []struct {
		contentType, id, body string
		code                  int
	}{
		{"text/plain", "a", "data", 202},
		{"text/plain", "a", "data", 202},
		{"application/cloudevents+json; charset=utf-8", "", `{"id": "structured"}`, 202},
		{"text/plain", "slow", "", 200},
		{"text/plain", "refused", "", 503},
		{"text/plain", "refused", "", 202},
	} {
		if code, err := send(t.Context(), s.URL, tt.contentType, tt.id, tt.body); err != nil || code != tt.code {
			t.Errorf("event %q%s: %d, %v, want %d", tt.id, tt.body, code, err, tt.code)
		}
	}
	if code, err := send(t.Context(), s.URL, "text/plain", "dropped", ""); err == nil {
		t.Errorf("the event whose connection is to be dropped got %d", code)
	}
	if diff := cmp.Diff(map[string]int{"a": 2, "structured": 1, "slow": 1, "refused": 1}, s.Received()); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
	attempts := s.Attempts()
	// The client may have retried on its own after the connection was dropped.
	delete(attempts, "dropped")
	if diff := cmp.Diff(map[string]int{"a": 2, "structured": 1, "slow": 1, "refused": 2}, attempts); diff != "" {
		t.Errorf("attempts (-want +got):\n%s", diff)
	}
	first := s.Deliveries()[0]
	if first.ID != "a" || string(first.Body) != "data" || first.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("the first delivery is %+v", first)
	}
}

func TestSinkWaits(t *testing.T) {
	sink := NewSink(t)
	s := sink.At("/")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.Await(ended, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for an event that does not arrive: %v, want %v", err, context.Canceled)
	}
	if err := s.AwaitAll(ended, []string{"a"}); err == nil || !strings.Contains(err.Error(), "1 are missing, such as a (after 0 attempts)") {
		t.Errorf("waiting for an event that does not arrive: %v, want an error that names it", err)
	}
	arrived := make(chan error, 1)
	go func() { arrived <- errors.Join(s.AwaitAll(t.Context(), []string{"a", "b"}), s.Await(t.Context(), 2)) }()
	for _, id := range []string{"b", "b", "a"} {
		if _, err := send(t.Context(), s.URL, "text/plain", id, ""); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-arrived; err != nil {
		t.Error(err)
	}
}

func TestSinkStopsAndStarts(t *testing.T) {
	sink := NewSink(t)
	s := sink.At("/")
	sink.Stop()
	if code, err := send(t.Context(), s.URL, "text/plain", "a", ""); err == nil {
		t.Errorf("a stopped sink answers %d", code)
	}
	sink.Start(t)
	if code, err := send(t.Context(), s.URL, "text/plain", "a", ""); err != nil || code != http.StatusAccepted {
		t.Errorf("a sink that was started again answers %d, %v", code, err)
	}
	if diff := cmp.Diff(map[string]int{"a": 1}, s.Received()); diff != "" {
		t.Errorf("received (-want +got):\n%s", diff)
	}
}

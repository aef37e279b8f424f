package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// transport answers requests by a handler.
type transport http.HandlerFunc

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	recorder := httptest.NewRecorder()
	t(recorder, r)
	return recorder.Result(), nil
}

func TestCall(t *testing.T) {
	to := membership.Member{Name: "b", Address: "192.0.2.2:8444"}
	var read string
	call := Call{Method: http.MethodPost, Path: "/usage", Query: url.Values{"a": {"1"}}, Body: strings.NewReader("in"), Read: func(body io.Reader) error {
		data, err := io.ReadAll(body)
		read = string(data)
		return err
	}}
	if err := call.Do(t.Context(), nil, to); !errors.Is(err, ErrNoTransport) {
		t.Errorf("without a transport: %v", err)
	}
	err := call.Do(t.Context(), transport(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost || r.URL.String() != "https://192.0.2.2:8444/usage?a=1" || string(body) != "in" {
			t.Errorf("%s %s with %q, %v", r.Method, r.URL, body, err)
		}
		fmt.Fprint(w, "out")
	}), to)
	if err != nil || read != "out" {
		t.Errorf("read %q, %v", read, err)
	}
	err = call.Do(t.Context(), transport(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusConflict) }), to)
	if err == nil || !strings.Contains(err.Error(), "409") {
		t.Errorf("a conflict is %v", err)
	}
}

// A call is retried until it succeeds, its error is ignored, or its context ends.
func TestRetry(t *testing.T) {
	for name, test := range map[string]struct {
		failures int
		ignored  int
		took     time.Duration
		fails    bool
	}{
		"at once":         {},
		"on third":        {failures: 2, took: 2 * time.Second},
		"ignored":         {failures: 100, ignored: 3, took: 2 * time.Second},
		"until ctx ended": {failures: 100, took: 9500 * time.Millisecond, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				server := transport(func(w http.ResponseWriter, _ *http.Request) {
					if calls++; calls <= test.failures {
						w.WriteHeader(http.StatusServiceUnavailable)
					}
				})
				ctx, cancel := context.WithTimeout(t.Context(), 9500*time.Millisecond)
				defer cancel()
				began := time.Now()
				err := Call{Method: http.MethodGet}.Retry(ctx, server, membership.Member{Address: "b"}, time.Second, func(error) bool { return calls == test.ignored })
				if took := time.Since(began); took != test.took || (err != nil) != test.fails {
					t.Errorf("it took %s, %v; want %s", took, err, test.took)
				}
			})
		})
	}
}

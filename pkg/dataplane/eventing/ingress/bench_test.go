package ingress

import (
	"bytes"
	"context"
	"net/http"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// BenchmarkServeHTTP measures the handler with events of 1 KiB, without the HTTP server.
func BenchmarkServeHTTP(b *testing.B) {
	buffer := make([]byte, 0, 4096)
	handler := New(Options{Exists: exists, Accept: func(_ context.Context, _ eventing.Key, events []*event.Event) error {
		buffer = events[0].Append(buffer[:0])
		return nil
	}})
	body := bytes.NewReader(body1KiB)
	r, err := http.NewRequestWithContext(b.Context(), http.MethodPost, "http://x/default/orders", body)
	if err != nil {
		b.Fatal(err)
	}
	for name, value := range map[string]string{
		"ce-specversion": "1.0", "ce-id": "1", "ce-source": "/s", "ce-type": "t", "content-type": "application/json",
	} {
		r.Header.Set(name, value)
	}
	w := &discard{header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		body.Reset(body1KiB)
		handler.ServeHTTP(w, r)
	}
	if w.code != http.StatusAccepted {
		b.Fatalf("got %d", w.code)
	}
}

var body1KiB = bytes.Repeat([]byte("x"), 1024)

type discard struct {
	header http.Header
	code   int
}

func (d *discard) Header() http.Header            { return d.header }
func (d *discard) Write(data []byte) (int, error) { return len(data), nil }
func (d *discard) WriteHeader(code int)           { d.code = code }

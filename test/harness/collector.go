package harness

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/port"
)

var buildCollector = buildTool("otelcol")

// Collector is the OTLP receiver of the OpenTelemetry Collector.
type Collector struct {
	// Endpoints are the URLs for the protocols grpc and http/protobuf.
	Endpoints map[string]string

	mu      sync.Mutex
	spans   map[string][]string // guarded by mu; names of spans by trace
	metrics []string            // guarded by mu; names of metrics
}

// otlpRequest is a request of OTLP/JSON, of which it has the names.
type otlpRequest struct {
	ResourceSpans []struct {
		ScopeSpans []struct {
			Spans []struct{ TraceID, Name string }
		}
	}
	ResourceMetrics []struct {
		ScopeMetrics []struct {
			Metrics []struct{ Name string }
		}
	}
}

// RunCollector runs a Collector until the test ends.
func RunCollector(t testing.TB) *Collector {
	t.Helper()
	var addresses [2]string
	for i := range addresses {
		free, err := port.Stable()
		if err != nil {
			t.Fatal(err)
		}
		addresses[i] = net.JoinHostPort("127.0.0.1", strconv.Itoa(free))
	}
	c := &Collector{Endpoints: map[string]string{"grpc": "http://" + addresses[0], "http/protobuf": "http://" + addresses[1]}, spans: map[string][]string{}}
	received := json.NewDecoder(runTool(t, buildCollector, &struct{}{}, "-grpc", addresses[0], "-http", addresses[1]))
	ended := make(chan error, 1)
	go func() { ended <- c.follow(received) }()
	// The program ends after this.
	t.Cleanup(func() {
		select {
		case err := <-ended:
			t.Errorf("the collector ended: %v", err)
		default:
		}
	})
	return c
}

// follow records the requests until there are no more.
func (c *Collector) follow(received *json.Decoder) error {
	for {
		var request otlpRequest
		if err := received.Decode(&request); err == io.EOF {
			return nil
		} else if err != nil {
			return err
		}
		c.add(&request)
	}
}

func (c *Collector) add(request *otlpRequest) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range request.ResourceSpans {
		for _, scope := range of.ScopeSpans {
			for _, span := range scope.Spans {
				c.spans[span.TraceID] = append(c.spans[span.TraceID], span.Name)
			}
		}
	}
	for _, of := range request.ResourceMetrics {
		for _, scope := range of.ScopeMetrics {
			for _, metric := range scope.Metrics {
				c.metrics = append(c.metrics, metric.Name)
			}
		}
	}
}

// Await waits until the Collector has received all the named spans of a trace, and a metric.
func (c *Collector) Await(t testing.TB, trace string, spans []string, metric string) {
	t.Helper()
	Eventually(t, "the collector receives spans and metrics", func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, name := range spans {
			if !slices.Contains(c.spans[trace], name) {
				return fmt.Errorf("trace %s has the spans %q, want %q", trace, c.spans[trace], spans)
			}
		}
		if !slices.Contains(c.metrics, metric) {
			return fmt.Errorf("no metric %s in %d", metric, len(c.metrics))
		}
		return nil
	})
}

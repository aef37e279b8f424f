package serving

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// revisionMetrics are the metrics of each Revision that a request started from zero.
var revisionMetrics = []string{
	"knative_gateway_requests_total", "knative_gateway_request_duration_seconds_count", "knative_gateway_queue_wait_seconds_count",
	"knative_gateway_queued_requests", "knative_gateway_in_flight_requests", "knative_gateway_cold_start_seconds_count",
	"knative_autoscaler_desired_instances", "knative_autoscaler_ready_instances", "knative_autoscaler_scale_changes_total",
}

// TestMetrics checks the metrics of a Revision, and that they disappear with it.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := shared.newSite(t, "measured", scaling("initial-scale", "0"))
	client := s.h2(t)
	s.mustGet(t, s.url+"/")
	for range 4 {
		s.mustGet(t, s.url+"/")
		mustAsk(t, client, http.MethodGet, s.url+"/", nil)
	}
	mustAsk(t, s.http, http.MethodGet, s.url+"/status?code=418", nil)
	revision := s.revision(t).Name
	labels := []string{
		fmt.Sprintf("namespace=%q", s.namespace), fmt.Sprintf("service=%q", s.name),
		fmt.Sprintf("configuration=%q", s.name), fmt.Sprintf("revision=%q", revision),
	}
	with := func(label string) []string { return append(labels[:4:4], label) }
	for _, test := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"knative_gateway_requests_total", with(`code="200"`), 9},
		{"knative_gateway_requests_total", with(`code="418"`), 1},
		{"knative_gateway_request_duration_seconds_count", labels, 10},
		{"knative_gateway_queue_wait_seconds_count", labels, 1},
		{"knative_gateway_queued_requests", labels, 0},
		{"knative_gateway_in_flight_requests", labels, 0},
		{"knative_gateway_cold_start_seconds_count", with(`phase="scheduling"`), 1},
		{"knative_gateway_cold_start_seconds_count", with(`phase="starting"`), 1},
		{"knative_gateway_cold_start_seconds_count", with(`phase="forwarding"`), 1},
		{"knative_autoscaler_desired_instances", labels, 1},
		{"knative_autoscaler_ready_instances", labels, 1},
		{"knative_autoscaler_scale_changes_total", with(`direction="up"`), 1},
	} {
		s.untilMetric(t, test.name, test.want, test.labels...)
	}

	hang := s.mustDial(t)
	if _, err := hang.Write([]byte(get(s.host, "/hang"))); err != nil {
		t.Fatal(err)
	}
	s.untilMetric(t, "knative_gateway_in_flight_requests", 1, labels...)
	if err := hang.Close(); err != nil {
		t.Fatal(err)
	}
	s.untilMetric(t, "knative_gateway_requests_total", 1, with(`code="0"`)...)

	s.remove(t)
	for _, name := range revisionMetrics {
		harness.Eventually(t, name+" is removed with its Revision", func() error {
			value, found, err := s.metric(t.Context(), name, labels[0])
			if err == nil && found {
				err = fmt.Errorf("it is %v", value)
			}
			return err
		})
	}
}

// TestAccessLog checks that each request has a line of JSON with the trace ID that the backend received.
func TestAccessLog(t *testing.T) {
	t.Parallel()
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	s := shared.newSite(t, "logged", instances("1"))
	for protocol, client := range s.clients(t) {
		path := "/headers?by=" + strings.ReplaceAll(protocol, "/", "-") + `"quoted`
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("User-Agent", `a "client"`)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		var got headersReport
		err = json.NewDecoder(response.Body).Decode(&got)
		response.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		entry := s.logged(t, got.URI)
		trace := strings.Split(got.Header.Get("Traceparent"), "-")
		for name, want := range map[string]any{
			"method": "GET", "host": s.host, "userAgent": `a "client"`, "status": 200.0, "namespace": s.namespace,
			"revision": s.revision(t).Name, "traceId": trace[1],
		} {
			if entry[name] != want {
				t.Errorf("the log of a request by %s has %s %v, want %v", protocol, name, entry[name], want)
			}
		}
		if instance, _ := entry["instance"].(string); instance == "" {
			t.Errorf("the log of a request by %s names no instance: %v", protocol, entry)
		}
		if size, _ := entry["bytesOut"].(float64); size == 0 {
			t.Errorf("the log of a request by %s reports no bytes: %v", protocol, entry)
		}
	}
	if a, err := s.mustDial(t).exchange(http.MethodGet, strings.Replace(get(s.host, "/?traced"), "\r\n\r\n", "\r\nTraceparent: "+parent+"\r\n\r\n", 1)); err != nil || a.code != http.StatusOK {
		t.Fatalf("a traced request got %+v, %v", a, err)
	}
	if got := s.logged(t, "/?traced")["traceId"]; got != strings.Split(parent, "-")[1] {
		t.Errorf("the log has trace %v, want the trace of %s", got, parent)
	}
}

// logged returns the access log entry of the request to a path of a site.
func (s *site) logged(t testing.TB, path string) (found map[string]any) {
	t.Helper()
	harness.Eventually(t, "the access log has "+path, func() error {
		log, err := os.Open(filepath.Join(filepath.Dir(s.Kubeconfig), "access.log"))
		if err != nil {
			return err
		}
		defer log.Close()
		lines := bufio.NewScanner(log)
		for lines.Scan() {
			entry := map[string]any{}
			if err := json.Unmarshal(lines.Bytes(), &entry); err != nil {
				// The last line may be incomplete; the next attempt finds it.
				return fmt.Errorf("a line is not JSON: %q: %w", lines.Text(), err)
			}
			if entry["host"] == s.host && entry["path"] == path {
				found = entry
				return nil
			}
		}
		return fmt.Errorf("no line of %s has the request (%w)", log.Name(), errors.Join(lines.Err(), os.ErrNotExist))
	})
	return found
}

package serving

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

func trimmed(body string) string { return strings.TrimSpace(body) }

// TestBurstAtZero sends 500 requests at once to a Revision at zero. All wait for the backend that one decision starts, and
// succeed (serving 8-7). The target of one backend exceeds their number, so only the waiting requests require scale.
func TestBurstAtZero(t *testing.T) {
	t.Parallel()
	const requests = 500
	s := shared.newSite(t, "burst", scaling("initial-scale", "0"), scaling("target", "1000"), env("START_DELAY", "300ms"))
	label := fmt.Sprintf("namespace=%q", s.namespace)
	if changes, _, err := s.metric(t.Context(), "knative_autoscaler_scale_changes_total", label); err != nil || changes != 0 {
		t.Fatalf("before the first request the scale changed %v times (%v), want 0", changes, err)
	}
	clients := make([]*wire, requests)
	for i := range clients {
		clients[i] = s.mustDial(t)
	}
	var running sync.WaitGroup
	var first sync.Once
	for i, client := range clients {
		running.Go(func() {
			a, err := client.exchange(http.MethodGet, get(s.host, "/"))
			first.Do(func() {
				ups, _, err := s.metric(t.Context(), "knative_autoscaler_scale_changes_total", label, `direction="up"`)
				if err != nil || ups != 1 {
					t.Errorf("by the first answer the scale was raised %v times (%v), want once", ups, err)
				}
			})
			if err != nil || a.code != http.StatusOK {
				t.Errorf("request %d got %+v, %v, want 200", i, a, err)
			}
		})
	}
	running.Wait()
	revision := s.revision(t)
	harness.Eventually(t, "the Event of the scale-up exists", func() error {
		from, err := s.eventsOf(t.Context(), s.namespace, revision.Name, "Scaled from 0 ")
		if err != nil {
			return err
		}
		if from != 1 {
			return fmt.Errorf("%d Events report scaling from 0, want 1", from)
		}
		return nil
	})
	s.untilMetric(t, "knative_gateway_cold_start_seconds_count", 3)
}

// eventsOf counts the Events with a reason about an object.
func (s *server) eventsOf(ctx context.Context, namespace, object, message string) (int32, error) {
	response, err := s.Send(ctx, harness.Request{Method: http.MethodGet, Path: "/api/v1/namespaces/" + namespace + "/events"})
	if err != nil {
		return 0, err
	}
	events, err := parsed[corev1.EventList](response)
	if err != nil {
		return 0, err
	}
	var n int32
	for _, e := range events.Items {
		if e.InvolvedObject.Name == object && strings.HasPrefix(e.Message, message) {
			n += max(e.Count, 1)
		}
	}
	return n, nil
}

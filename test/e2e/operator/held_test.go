package operator

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// heldEvents is the number of waiting events.
const heldEvents = 50

// held are acknowledged events whose subscriber is a core Service without endpoints until release.
type held struct {
	stage *stage
	name  string
	load  load
}

// newHeld returns events whose subscriber has no endpoints yet.
func newHeld(t *testing.T, s *stage) *held {
	t.Helper()
	h := &held{stage: s, name: "held-" + strings.ToLower(rand.Text()[:6]), load: load{stage: s, accepted: map[string]time.Time{}}}
	_, err := node.Host.CoreV1().Services(s.namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: h.name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"held": h.name},
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func holdEvents(t *testing.T, s *stage) *held {
	t.Helper()
	h := newHeld(t, s)
	create(t, harness.KindOf("Broker").Object(s.namespace, h.name))
	trigger := harness.KindOf("Trigger").Object(s.namespace, h.name)
	trigger.Object["spec"] = map[string]any{
		"broker":     h.name,
		"subscriber": map[string]any{"ref": map[string]any{"apiVersion": "v1", "kind": "Service", "name": h.name}},
		"delivery":   map[string]any{"retry": int64(1000), "backoffPolicy": "linear", "backoffDelay": "PT1S"},
	}
	create(t, trigger)
	address := s.awaitReady(t, "Broker", h.name, "address", "url")
	s.awaitReady(t, "Trigger", h.name, "subscriberUri")
	h.fill(t, mustParse(t, address).Path)
	return h
}

// fill sends the events to a path of the ingress.
func (h *held) fill(t *testing.T, path string) {
	t.Helper()
	s := h.stage
	base := mustParse(t, s.ingress)
	base.Path = path
	h.load.stage = &stage{namespace: s.namespace, ingress: base.String()}
	for number := range heldEvents {
		eventually(t, patience, "an event is acknowledged", func(ctx context.Context) error {
			return h.load.send(ctx, http.DefaultClient, fmt.Sprintf("%s-%d", h.name, number))
		})
	}
	received, err := s.received()
	if err != nil {
		t.Fatal(err)
	}
	for id := range h.load.accepted {
		if _, there := received[id]; there {
			t.Fatalf("event %s was delivered, although its subscriber has no endpoints", id)
		}
	}
}

// discard deletes the Broker, and so the events, with the Trigger.
func (h *held) discard(t *testing.T) { h.discardKinds(t, "Broker", "Trigger") }

// discardKinds deletes the objects of the events.
func (h *held) discardKinds(t *testing.T, kinds ...string) {
	t.Helper()
	for _, kind := range kinds {
		objects := node.Admin.Dynamic.Resource(harness.KindOf(kind).GVR()).Namespace(h.stage.namespace)
		if err := objects.Delete(t.Context(), h.name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The owner deletes the stream once it observes the deletion of the Broker.
	eventually(t, patience, "no more events are accepted", func(ctx context.Context) error {
		if err := h.load.send(ctx, http.DefaultClient, "late"); err == nil || !strings.Contains(err.Error(), "404") {
			return fmt.Errorf("an event is answered with %w", err)
		}
		return nil
	})
	delete(h.load.accepted, "late")
}

// release adds the stage's Pods as endpoints of the subscriber, and waits until they have received all events.
func (h *held) release(t *testing.T) {
	t.Helper()
	harness.Edit(t, node.Host.CoreV1().Services(h.stage.namespace), h.name, func(service *corev1.Service) {
		service.Spec.Selector = map[string]string{"serving.knative.dev/service": appName}
	})
	h.load.awaitDelivered(t)
}

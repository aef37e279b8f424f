package host

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// newServer returns a server that accepts Events, and the accepted Events.
func newServer(t *testing.T) (*rest.Config, <-chan *corev1.Event) {
	t.Helper()
	accepted := make(chan *corev1.Event, 10)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event := &corev1.Event{}
		if r.Method != http.MethodPost || r.URL.Path != "/api/v1/namespaces/ns/events" {
			http.Error(w, "unexpected "+r.Method+" "+r.URL.Path, http.StatusNotFound)
			return
		}
		if err := json.NewDecoder(r.Body).Decode(event); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		accepted <- event.DeepCopy()
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(event) // fails only if the client disconnected
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}, accepted
}

// Objects returned by a lister have no kind set; the Event refers to the kind nevertheless.
func TestRecorderRefersToOurKinds(t *testing.T) {
	config, accepted := newServer(t)
	recorder, stop, err := NewRecorder(t.Context(), config, "revision-controller")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	meta := metav1.ObjectMeta{Name: "hello-00001", Namespace: "ns", UID: "u", ResourceVersion: "7"}
	recorder.Eventf(&servingv1.Revision{ObjectMeta: meta}, corev1.EventTypeWarning, "ExitCode1", "Container failed with: %s", "oops")

	got := <-accepted
	want := &corev1.Event{
		InvolvedObject: corev1.ObjectReference{
			APIVersion: "serving.knative.dev/v1", Kind: "Revision", Namespace: "ns", Name: "hello-00001", UID: "u", ResourceVersion: "7",
		},
		Type: "Warning", Reason: "ExitCode1", Message: "Container failed with: oops", Count: 1,
		Source: corev1.EventSource{Component: "revision-controller"}, ReportingController: "revision-controller",
	}
	if got.Name == "" || got.Namespace != "ns" || got.FirstTimestamp.IsZero() {
		t.Errorf("metadata is %v, first seen %v", got.ObjectMeta, got.FirstTimestamp)
	}
	got.TypeMeta, got.ObjectMeta, got.FirstTimestamp, got.LastTimestamp = metav1.TypeMeta{}, metav1.ObjectMeta{}, metav1.Time{}, metav1.Time{}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Recording after stop neither blocks nor panics.
func TestRecorderEnds(t *testing.T) {
	config, _ := newServer(t)
	ctx, cancel := context.WithCancel(t.Context())
	recorder, stop, err := NewRecorder(ctx, config, "c")
	if err != nil {
		t.Fatal(err)
	}
	stop()
	cancel()
	recorder.Event(&servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "ns"}}, corev1.EventTypeNormal, "Created", "m")
}

func TestNoRecorderForABadConfig(t *testing.T) {
	_, _, err := NewRecorder(t.Context(), &rest.Config{Host: "http://[bad"}, "c")
	if err == nil {
		t.Error("no error")
	}
}

package serving

import (
	"errors"
	"net/http"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

var (
	camelCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	ownPrefix = regexp.MustCompile(`^([a-z]+\.)*knative\.dev/`)
)

// TestKeysOfTheServer checks that the labels and annotations that the server adds to objects have a prefix of Knative's, and
// none of Kubernetes' (conventions Labels and Annotations-2 and -3, serving 5.1-3), and that conditions and their reasons
// (conventions Conditions-5 and -7), and the reasons of Events (conventions Events-2), are in CamelCase.
func TestKeysOfTheServer(t *testing.T) {
	t.Parallel()
	ns := namespace()
	shared.deploy(t, app(t, ns, "keys"))
	for _, kind := range servingKinds() {
		response := shared.Do(t, harness.Request{Method: http.MethodGet, Path: kind.Collection(ns)})
		var list unstructured.UnstructuredList
		if err := list.UnmarshalJSON(response.Body); err != nil || len(list.Items) == 0 {
			t.Fatalf("%s: %d objects, %v", kind.Resource, len(list.Items), err)
		}
		for i := range list.Items {
			obj := &list.Items[i]
			for _, keys := range []map[string]string{obj.GetLabels(), obj.GetAnnotations()} {
				for key := range keys {
					if !ownPrefix.MatchString(key) {
						t.Errorf("%s %s has the key %s", kind.Kind, obj.GetName(), key)
					}
				}
			}
			conditions, found, err := unstructured.NestedSlice(obj.Object, "status", "conditions")
			if !found || err != nil {
				t.Errorf("%s %s has no conditions: %v", kind.Kind, obj.GetName(), err)
			}
			for _, c := range conditions {
				condition := c.(map[string]any)
				if name, _ := condition["type"].(string); !camelCase.MatchString(name) {
					t.Errorf("%s %s has the condition %q", kind.Kind, obj.GetName(), name)
				}
				if reason, _ := condition["reason"].(string); strings.TrimSpace(reason) != reason || reason != "" && !camelCase.MatchString(reason) {
					t.Errorf("%s %s has the reason %q", kind.Kind, obj.GetName(), reason)
				}
			}
		}
	}
	var events *corev1.EventList
	harness.Eventually(t, "Events are stored", func() (err error) {
		response := shared.Do(t, harness.Request{Method: http.MethodGet, Path: "/api/v1/namespaces/" + ns + "/events"})
		if events, err = parsed[corev1.EventList](response); err == nil && len(events.Items) == 0 {
			err = errors.New("the list is empty")
		}
		return err
	})
	for i := range events.Items {
		if e := &events.Items[i]; !camelCase.MatchString(e.Reason) {
			t.Errorf("an Event of %s has the reason %q", e.InvolvedObject.Name, e.Reason)
		}
	}
}

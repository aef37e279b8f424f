package standalone

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// record writes Events about obj like a controller, and waits until the last one is stored.
func record(t *testing.T, kubectl *harness.Kubectl, obj *unstructured.Unstructured, reasons ...string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", server.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	recorder, stop, err := host.NewRecorder(t.Context(), config, "test-controller")
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	for _, reason := range reasons {
		recorder.Eventf(obj, corev1.EventTypeNormal, reason, "Did %s of %s", reason, obj.GetName())
	}
	want := fmt.Sprintf("Did %s of %s", reasons[len(reasons)-1], obj.GetName())
	harness.Eventually(t, "the Events are stored", func() error {
		if out := kubectl.Must(t, "", "get", "events", "-o", "jsonpath={.items[*].message}"); !strings.Contains(out, want) {
			return fmt.Errorf("there is %q", out)
		}
		return nil
	})
}

// TestKubectlShowsEvents checks that users see the Events of controllers with kubectl.
func TestKubectlShowsEvents(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		kubectl := harness.NewKubectl(t, server.Kubeconfig, obj.GetNamespace())
		record(t, kubectl, obj, "Created", "Scaled", "Scaled")
		object := strings.ToLower(k.Kind) + "/" + obj.GetName()

		described := kubectl.Must(t, "", "describe", k.Resource+"."+k.Group, obj.GetName())
		for _, want := range []string{
			`(?m)^Events:\n  Type    Reason   Age\s+From             Message\n`,
			`(?m)^  Normal  Created  \S+\s+test-controller  Did Created of ` + obj.GetName() + `$`,
			`(?m)^  Normal  Scaled   \S+( \(x2 over \S+\))?\s+test-controller  Did Scaled of ` + obj.GetName() + `$`,
		} {
			if !regexp.MustCompile(want).MatchString(described) {
				t.Errorf("describe does not match %s:\n%s", want, described)
			}
		}

		selected := kubectl.Must(t, "", "get", "events", "--field-selector", "reason=Created,involvedObject.kind="+k.Kind+",involvedObject.name="+obj.GetName())
		if !regexp.MustCompile(`^LAST SEEN   TYPE     REASON    OBJECT\s+MESSAGE\n\S+\s+Normal   Created   ` + object + `\s+Did Created of ` + obj.GetName() + `\n$`).MatchString(selected) {
			t.Errorf("get events:\n%s", selected)
		}
		listed := kubectl.Must(t, "", "events", "--for", k.Resource+"."+k.Group+"/"+obj.GetName())
		if strings.Count(listed, "Did Created of "+obj.GetName()) != 1 {
			t.Errorf("events --for:\n%s", listed)
		}
	})
}

// TestKubectlDescribesWithoutEvents checks kubectl describe, which also requests resources that a standalone server lacks.
func TestKubectlDescribesWithoutEvents(t *testing.T) {
	for _, k := range []string{"Service", "Configuration", "Revision", "Route"} {
		kind := harness.KindOf(k)
		obj := stored(t, kind)
		out := harness.NewKubectl(t, server.Kubeconfig, obj.GetNamespace()).Must(t, "", "describe", kind.Resource+"."+kind.Group, obj.GetName())
		if !regexp.MustCompile(`^Name:\s+`+obj.GetName()+`\n`).MatchString(out) || !regexp.MustCompile(`\nEvents:\s+<none>\n$`).MatchString(out) {
			t.Errorf("%s:\n%s", k, out)
		}
	}
}

func newEvent(namespace, involved string) object {
	return object{
		"apiVersion": "v1", "kind": "Event",
		"metadata":       object{"name": "e", "namespace": namespace},
		"involvedObject": object{"kind": "Service", "name": "a", "namespace": involved},
		"reason":         "Created", "type": "Normal",
	}
}

func TestEventsAPI(t *testing.T) {
	ns := namespace(t)
	path := "/api/v1/namespaces/" + ns + "/events"

	refused := admin.Do(t, harness.Request{Method: "POST", Path: path, Body: newEvent(ns, "elsewhere")})
	if status := refused.Status(t); refused.Code != 422 || len(status.Details.Causes) != 1 || status.Details.Causes[0].Field != "involvedObject.namespace" {
		t.Errorf("an Event about another namespace: code %d, %s", refused.Code, refused.Body)
	}
	unknown := admin.Do(t, harness.Request{Method: "GET", Path: path + "?fieldSelector=message%3Dx"})
	if status := unknown.Status(t); unknown.Code != 400 || status.Reason != metav1.StatusReasonBadRequest {
		t.Errorf("an unknown field: code %d, %s", unknown.Code, unknown.Body)
	}

	made := admin.Do(t, harness.Request{Method: "POST", Path: path, Body: newEvent(ns, ns)}).Object(t)
	if got := admin.Do(t, harness.Request{Method: "GET", Path: path + "/e"}).Object(t); got.GetUID() != made.GetUID() {
		t.Errorf("got %v", got)
	}
	patched := admin.Do(t, harness.Request{Method: "PATCH", Path: path + "/e", ContentType: "application/strategic-merge-patch+json", Body: object{"count": 2}}).Object(t)
	if got := field(patched, "count"); got != int64(2) {
		t.Errorf("count is %v", got)
	}
	if answer := admin.Do(t, harness.Request{Method: "DELETE", Path: path + "/e"}); answer.Code != 200 {
		t.Errorf("delete: code %d", answer.Code)
	}
}

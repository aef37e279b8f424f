package standalone

import (
	"regexp"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestRevisionScale checks that the scale of a Revision is read like a Deployment's, and cannot be set.
// It covers conventions Types-6.
func TestRevisionScale(t *testing.T) {
	k := harness.KindOf("Revision")
	obj := stored(t, k)
	kubectl := harness.NewKubectl(t, server.Kubeconfig, obj.GetNamespace())
	path := k.Path(obj.GetNamespace(), obj.GetName()) + "/scale"

	got := admin.Do(t, harness.Request{Method: "GET", Path: path}).Object(t)
	if diff := cmp.Diff(object{"replicas": int64(0), "selector": "serving.knative.dev/revision=" + obj.GetName()}, got.Object["status"]); diff != "" {
		t.Errorf("status before anything is known (-want +got):\n%s", diff)
	}
	controllers.Do(t, harness.Request{
		Method: "PATCH", Path: k.StatusPath(obj.GetNamespace(), obj.GetName()), ContentType: mergePatch,
		Body: object{"status": object{"actualReplicas": 1, "desiredReplicas": 3}},
	}).Object(t)
	got = admin.Do(t, harness.Request{Method: "GET", Path: path}).Object(t)
	if got.GetAPIVersion() != "autoscaling/v1" || got.GetKind() != "Scale" || got.GetUID() != obj.GetUID() ||
		field(got, "spec", "replicas") != int64(3) || field(got, "status", "replicas") != int64(1) {
		t.Errorf("scale is %v", got.Object)
	}

	shown := kubectl.Must(t, "", "get", "rev", obj.GetName(), "--subresource=scale")
	if !regexp.MustCompile(`^NAME\s+DESIRED\s+AVAILABLE\s+AGE\n` + obj.GetName() + `\s+3\s+1\s+\S+\n$`).MatchString(shown) {
		t.Errorf("kubectl get --subresource=scale:\n%s", shown)
	}
	for _, write := range []harness.Request{
		{Method: "PUT", Path: path, Body: got},
		{Method: "PATCH", Path: path, ContentType: mergePatch, Body: object{"spec": object{"replicas": 5}}},
	} {
		if answer := admin.Do(t, write); answer.Code != 405 {
			t.Errorf("%s: code %d, want 405", write.Method, answer.Code)
		}
	}
	if answer := admin.Do(t, harness.Request{Method: "GET", Path: k.Path(obj.GetNamespace(), "none") + "/scale"}); answer.Code != 404 {
		t.Errorf("of no Revision: code %d, want 404", answer.Code)
	}
}

package serving

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// knMapping is what kn reads of a DomainMapping to list or describe it.
type knMapping struct {
	APIVersion, Kind string
	Metadata         struct {
		Name, Namespace, ResourceVersion string
		CreationTimestamp                time.Time
	}
	Spec struct {
		Ref struct{ APIVersion, Kind, Name, Namespace string }
		TLS *struct{ SecretName string }
	}
	Status struct {
		URL        string
		Conditions []struct {
			Type, Status, Reason, Message string
			LastTransitionTime            time.Time
		}
	}
}

// ready returns the status of the condition Ready, or nothing.
func (m *knMapping) ready() string {
	for _, c := range m.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status
		}
	}
	return ""
}

// knDecode decodes a successful response.
func knDecode(t *testing.T, response *harness.Response, into any) {
	t.Helper()
	if response.Code/100 != 2 {
		t.Fatalf("code %d: %s", response.Code, response.Body)
	}
	if err := json.Unmarshal(response.Body, into); err != nil {
		t.Fatalf("%v in %s", err, response.Body)
	}
}

// TestKnDomain covers the requests of kn domain create, list, describe, update and delete, with the bodies of its typed client; kn itself is
// not part of the tests.
func TestKnDomain(t *testing.T) {
	t.Parallel()
	const ns, host = "shop", "www.kn.example.org"
	const serving, mappings = "/apis/serving.knative.dev/v1/namespaces/" + ns, "/apis/serving.knative.dev/v1beta1/namespaces/" + ns + "/domainmappings"
	config := writeSettings(t, map[string]map[string]string{"config-network": {"autocreate-cluster-domain-claims": "true"}})
	s := start(t, t.TempDir(), "--config-dir", config.dir)
	s.deploy(t, app(t, ns, "hello", env("TARGET", "1")))
	s.deploy(t, app(t, ns, "other", env("TARGET", "2")))
	do := func(method, path string, body any) *harness.Response {
		t.Helper()
		return s.Do(t, harness.Request{Method: method, Path: path, Body: body})
	}
	// ref returns spec.ref for --ref: kn reads the object first.
	ref := func(resource, name string) map[string]any {
		t.Helper()
		object := do(http.MethodGet, serving+"/"+resource+"/"+name, nil).Object(t)
		return map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "name": name, "namespace": ns}
	}
	created := func(spec map[string]any) map[string]any {
		return map[string]any{
			"apiVersion": "serving.knative.dev/v1beta1", "kind": "DomainMapping",
			"metadata": map[string]any{"name": host, "namespace": ns, "creationTimestamp": nil}, "spec": spec, "status": map[string]any{},
		}
	}
	wantReason := func(what string, response *harness.Response, code int, reason metav1.StatusReason) {
		t.Helper()
		if status := response.Status(t); response.Code != code || status.Reason != reason {
			t.Errorf("%s: %d %s %s, want %d %s", what, response.Code, status.Reason, status.Message, code, reason)
		}
	}

	// kn domain create www.kn.example.org --ref ksvc:hello
	wantReason("the target does not exist", do(http.MethodGet, serving+"/services/missing", nil), http.StatusNotFound, metav1.StatusReasonNotFound)
	var m knMapping
	knDecode(t, do(http.MethodPost, mappings, created(map[string]any{"ref": ref("services", "hello")})), &m)
	if m.Kind != "DomainMapping" || m.Metadata.Name != host || m.Spec.Ref.Name != "hello" {
		t.Errorf("created %+v", m)
	}
	wantReason("create it again", do(http.MethodPost, mappings, created(map[string]any{"ref": ref("services", "hello")})), http.StatusConflict, metav1.StatusReasonAlreadyExists)
	// --ref ksvc:hello:other names another namespace.
	foreign := created(map[string]any{"ref": map[string]any{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "name": "hello", "namespace": "other"}})
	foreign["metadata"].(map[string]any)["name"] = "foreign.kn.example.org"
	wantReason("another namespace", do(http.MethodPost, mappings, foreign), http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)

	// kn domain describe
	s.mapped(t, ns, host, duckv1.ConditionReady, corev1.ConditionTrue, "")
	m = knMapping{}
	knDecode(t, do(http.MethodGet, mappings+"/"+host, nil), &m)
	u, err := url.Parse(m.Status.URL)
	if err != nil || u.Hostname() != host || m.ready() != "True" || m.Metadata.CreationTimestamp.IsZero() || m.Status.Conditions[0].LastTransitionTime.IsZero() {
		t.Errorf("described %+v", m)
	}
	wantReason("describe another", do(http.MethodGet, mappings+"/missing.kn.example.org", nil), http.StatusNotFound, metav1.StatusReasonNotFound)
	if got := s.mustGet(t, "http://"+host+"/"); got != "Hello 1!\n" {
		t.Errorf("the application answers %q", got)
	}

	// kn domain list, and kn domain list -A
	for _, path := range []string{mappings, "/apis/serving.knative.dev/v1beta1/domainmappings"} {
		var list struct {
			Kind  string
			Items []knMapping
		}
		knDecode(t, do(http.MethodGet, path, nil), &list)
		if list.Kind != "DomainMappingList" || len(list.Items) != 1 || list.Items[0].Metadata.Name != host || list.Items[0].Status.URL != m.Status.URL || list.Items[0].ready() != "True" {
			t.Errorf("%s lists %+v", path, list)
		}
	}

	// kn domain update www.kn.example.org --ref kroute:other: kn writes the whole object that it read, and reads it again after a conflict.
	update := func(change func(spec map[string]any)) *harness.Response {
		t.Helper()
		object := do(http.MethodGet, mappings+"/"+host, nil).Object(t)
		change(object.Object["spec"].(map[string]any))
		return do(http.MethodPut, mappings+"/"+host, object)
	}
	stale := do(http.MethodGet, mappings+"/"+host, nil).Object(t)
	m = knMapping{}
	knDecode(t, update(func(spec map[string]any) { spec["ref"] = ref("routes", "other") }), &m)
	if m.Spec.Ref.Kind != "Route" || m.Spec.Ref.Name != "other" {
		t.Errorf("updated %+v", m)
	}
	wantReason("update an old version", do(http.MethodPut, mappings+"/"+host, stale), http.StatusConflict, metav1.StatusReasonConflict)
	harness.Eventually(t, "requests reach the other application", func() error {
		if got := s.mustGet(t, "http://"+host+"/"); got != "Hello 2!\n" {
			return errors.New(got)
		}
		return nil
	})
	// kn domain update www.kn.example.org --tls certificate
	harness.Eventually(t, "a Secret is named", func() error {
		response := update(func(spec map[string]any) { spec["tls"] = map[string]any{"secretName": "certificate"} })
		if response.Code == http.StatusConflict {
			return errors.New("conflict")
		}
		m = knMapping{}
		knDecode(t, response, &m)
		return nil
	})
	if m.Spec.TLS == nil || m.Spec.TLS.SecretName != "certificate" || m.Spec.Ref.Name != "other" {
		t.Errorf("updated %+v", m)
	}

	// kn domain delete
	deletion := map[string]any{"apiVersion": "serving.knative.dev/v1beta1", "kind": "DeleteOptions"}
	if response := do(http.MethodDelete, mappings+"/"+host, deletion); response.Code != http.StatusOK {
		t.Errorf("delete: %d %s", response.Code, response.Body)
	}
	harness.Eventually(t, "it is gone, and its claim", func() error {
		for _, path := range []string{mappings + "/" + host, "/apis/networking.internal.knative.dev/v1alpha1/clusterdomainclaims/" + host} {
			if response := do(http.MethodGet, path, nil); response.Code != http.StatusNotFound {
				return errors.New(path + " exists")
			}
		}
		return nil
	})
	wantReason("delete it again", do(http.MethodDelete, mappings+"/"+host, deletion), http.StatusNotFound, metav1.StatusReasonNotFound)
	var empty unstructured.UnstructuredList
	if err := empty.UnmarshalJSON(do(http.MethodGet, mappings, nil).Body); err != nil || len(empty.Items) != 0 {
		t.Errorf("the list has %d items, %v", len(empty.Items), err)
	}
}

package apiserver

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
)

// P11: without the front proxy's CA, every request would be anonymous.
func TestCheckFrontProxy(t *testing.T) {
	configMap := func(data map[string]string) runtime.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "extension-apiserver-authentication"}, Data: data}
	}
	tests := []struct {
		name string
		host []runtime.Object
		want []string
	}{
		{"published", []runtime.Object{configMap(map[string]string{"requestheader-client-ca-file": "pem"})}, nil},
		{"not published", []runtime.Object{configMap(nil)}, []string{"kube-system/extension-apiserver-authentication", "--requestheader-client-ca-file"}},
		{"no ConfigMap", nil, []string{"kube-system/extension-apiserver-authentication", "extension-apiserver-authentication-reader"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			requireError(t, checkFrontProxy(context.Background(), fake.NewClientset(test.host...)), test.want)
		})
	}
}

// P4: a CRD and an APIService of one group and version cannot coexist.
func TestCheckNoCRDs(t *testing.T) {
	crd := func(name, group, version string, served bool) runtime.Object {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1",
			"kind":       "CustomResourceDefinition",
			"metadata":   map[string]any{"name": name},
			"spec": map[string]any{
				"group":    group,
				"versions": []any{map[string]any{"name": version, "served": served}},
			},
		}}
	}
	tests := []struct {
		name string
		host []runtime.Object
		want []string
	}{
		{"none", nil, nil},
		{"another group", []runtime.Object{crd("services.example.com", "example.com", "v1", true)}, nil},
		{"another version of a group of this server", []runtime.Object{crd("domainmappings.serving.knative.dev", "serving.knative.dev", "v1alpha1", true)}, nil},
		{"not served", []runtime.Object{crd("services.serving.knative.dev", "serving.knative.dev", "v1", false)}, nil},
		{"two of this server", []runtime.Object{
			crd("services.serving.knative.dev", "serving.knative.dev", "v1", true),
			crd("inmemorychannels.messaging.knative.dev", "messaging.knative.dev", "v1", true),
		}, []string{"services.serving.knative.dev", "inmemorychannels.messaging.knative.dev", "docs/operations.md"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			lists := map[schema.GroupVersionResource]string{crdResource: "CustomResourceDefinitionList"}
			client := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), lists, test.host...)
			requireError(t, checkNoCRDs(context.Background(), client), test.want)
		})
	}
}

// requireError expects an error that contains all the parts, or no error if parts is empty.
func requireError(t *testing.T, err error, parts []string) {
	t.Helper()
	if (err != nil) != (len(parts) > 0) {
		t.Fatalf("error = %v, want one that names %q", err, parts)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not name %q", err, part)
		}
	}
}

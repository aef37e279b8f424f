package v1alpha1

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

func TestValidateClusterDomainClaim(t *testing.T) {
	for name, tt := range map[string]struct {
		name, namespace string
		want            []apitest.Fault
	}{
		"valid":                {"www.example.com", "shop", nil},
		"no namespace":         {"www.example.com", "", nil},
		"no name of namespace": {"www.example.com", "Shop", nil},
		"no DNS name":          {"www_example", "shop", []apitest.Fault{{Type: field.ErrorTypeInvalid, Field: "metadata.name", Detail: "RFC 1123 subdomain"}}},
	} {
		t.Run(name, func(t *testing.T) {
			c := &ClusterDomainClaim{ObjectMeta: metav1.ObjectMeta{Name: tt.name}, Spec: ClusterDomainClaimSpec{Namespace: tt.namespace}}
			apitest.ExpectFaults(t, ValidateClusterDomainClaim(c), tt.want...)
			apitest.ExpectFaults(t, ValidateClusterDomainClaimUpdate(c, c), tt.want...)
		})
	}
}

func TestWarnings(t *testing.T) {
	for namespace, want := range map[string]int{"shop": 0, "Shop": 1, "": 1} {
		if got := WarnClusterDomainClaim(&ClusterDomainClaim{Spec: ClusterDomainClaimSpec{Namespace: namespace}}); len(got) != want {
			t.Errorf("%s: %q", namespace, got)
		}
	}
	c := &ClusterDomainClaim{
		ObjectMeta: metav1.ObjectMeta{
			Labels:      map[string]string{"a": "b", "serving.knative.dev/route": "a"},
			Annotations: map[string]string{"a": "b", "networking.knative.dev/certificate-class": "a", "networking.internal.knative.dev/creator": "a"},
		},
		Spec: ClusterDomainClaimSpec{Namespace: "shop"},
	}
	got := WarnClusterDomainClaim(c)
	if len(got) != 2 || !strings.HasPrefix(got[0], "metadata.labels[serving.knative.dev/route]: has no effect") ||
		!strings.HasPrefix(got[1], "metadata.annotations[networking.knative.dev/certificate-class]: has no effect") {
		t.Errorf("warnings about metadata: %q", got)
	}
}

// TestWildcard covers the values of the annotation for names below a claim's: all are accepted, and values without effect cause warnings.
func TestWildcard(t *testing.T) {
	for value, warnings := range map[string]int{"true": 0, "false": 0, "True": 1, "*": 1, "": 1} {
		c := &ClusterDomainClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "example.com", Annotations: map[string]string{WildcardAnnotationKey: value}},
			Spec:       ClusterDomainClaimSpec{Namespace: "shop"},
		}
		apitest.ExpectFaults[apitest.Fault](t, ValidateClusterDomainClaim(c))
		if got := IsWildcard(c.Annotations); got != (value == "true") {
			t.Errorf("%q is a wildcard: %v", value, got)
		}
		if got := WarnClusterDomainClaim(c); len(got) != warnings || warnings > 0 && !strings.HasPrefix(got[0], "metadata.annotations[serving.knative.dev/wildcard]: has no effect") {
			t.Errorf("%q: warnings %q", value, got)
		}
	}
}

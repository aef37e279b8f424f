package v1beta1

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// Each label or annotation of Knative's groups has an effect on a DomainMapping, or causes a warning.
func TestWarnings(t *testing.T) {
	address := "https"
	ref := duckv1.KReference{Address: &address}
	m := &DomainMapping{
		ObjectMeta: metav1.ObjectMeta{
			Labels: map[string]string{"a": "b", "networking.knative.dev/visibility": "cluster-local"},
			Annotations: map[string]string{
				"serving.knative.dev/creator": "a", "serving.knative.dev/lastModifier": "a", "serving.knative.dev/wildcard": "true", "example.com/a": "b",
				"networking.knative.dev/http-protocol": "redirected", "networking.knative.dev/httpOption": "enabled",
				"networking.knative.dev/certificate-class": "a", "networking.knative.dev/disableAutoTLS": "yes",
				"networking.knative.dev/ingress-class": "a", "serving.knative.dev/invocation": "open", "serving.knative.dev/rollout-duration": "1s",
			},
		},
		Spec: DomainMappingSpec{Ref: ref, Paths: []DomainMappingPath{{Prefix: "/a"}, {Prefix: "/b", Ref: ref}}},
	}
	want := []string{
		"metadata.annotations[networking.knative.dev/disableAutoTLS]",
		"metadata.annotations[networking.knative.dev/http-protocol]",
		"metadata.annotations[networking.knative.dev/ingress-class]",
		"metadata.annotations[serving.knative.dev/invocation]",
		"metadata.annotations[serving.knative.dev/rollout-duration]",
		"metadata.labels[networking.knative.dev/visibility]",
		"spec.paths[1].ref.address",
		"spec.ref.address",
	}
	wantUnused(t, WarnDomainMapping(m, withTLS()), want...)
}

func withTLS() servingv1.Settings {
	st := servingv1.DefaultSettings()
	st.ExternalDomainTLS = true
	return st
}

// TestTLSWarnings covers annotations about TLS that have no effect without external-domain-tls, or with a Secret of the user.
func TestTLSWarnings(t *testing.T) {
	const disable, class, protocol = "metadata.annotations[networking.knative.dev/disable-auto-tls]",
		"metadata.annotations[networking.knative.dev/certificate-class]", "metadata.annotations[networking.knative.dev/http-protocol]"
	m := mapping(func(m *DomainMapping) {
		m.Annotations = map[string]string{
			"networking.knative.dev/disable-auto-tls": "false", "networking.knative.dev/certificate-class": "a", "networking.knative.dev/http-protocol": "Redirected",
		}
	})
	wantUnused(t, WarnDomainMapping(m, withTLS()))
	wantUnused(t, WarnDomainMapping(m, servingv1.DefaultSettings()), class, disable, protocol)
	m.Spec.TLS = &SecretTLS{SecretName: "certificate"}
	wantUnused(t, WarnDomainMapping(m, servingv1.DefaultSettings()), class, disable)
	wantUnused(t, WarnDomainMapping(m, withTLS()), class, disable)
}

// TestImpossibleWarnings covers an invalid value of the wildcard annotation, and names that no Secret can have.
func TestImpossibleWarnings(t *testing.T) {
	m := mapping(func(m *DomainMapping) { m.Annotations = map[string]string{"serving.knative.dev/wildcard": "*"} })
	wantUnused(t, WarnDomainMapping(m, withTLS()), "metadata.annotations[serving.knative.dev/wildcard]")
	for _, name := range []string{"", "../a"} {
		m := mapping(func(m *DomainMapping) { m.Spec.TLS = &SecretTLS{SecretName: name} })
		if got := WarnDomainMapping(m, withTLS()); len(got) != 1 || !strings.HasPrefix(got[0], "spec.tls.secretName: no Secret can have the name") {
			t.Errorf("%q: %q", name, got)
		}
	}
}

// wantUnused compares the fields that warnings report as without effect.
func wantUnused(t *testing.T, warnings []string, want ...string) {
	t.Helper()
	var got []string
	for _, warning := range warnings {
		path, why, _ := strings.Cut(warning, ": ")
		if !strings.HasPrefix(why, "has no effect: ") {
			t.Errorf("the warning is %q", warning)
		}
		got = append(got, path)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("warned of\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// The most specific matching selector determines the runtime class of a Revision.
func TestRuntimeClasses(t *testing.T) {
	store := NewStore(Default("example.com"))
	if d := store.Get().Deployment; !d.SpreadOverNodes || d.AlwaysSchedulable || d.RuntimeClasses.For(nil) != "" {
		t.Errorf("the defaults are %+v", d)
	}
	faults := store.Update(map[string]map[string]string{DeploymentConfigMapName: {
		"runtime-class-name":        "kata: {}\ngvisor:\n  selector: {sandbox: strict}\nfirecracker:\n  selector: {sandbox: strict, team: a}\n",
		"default-affinity-type":     "none",
		"pod-is-always-schedulable": "true",
	}})
	if len(faults) > 0 {
		t.Fatal(faults)
	}
	d := store.Get().Deployment
	if d.SpreadOverNodes || !d.AlwaysSchedulable {
		t.Errorf("the settings are %+v", d)
	}
	for want, labels := range map[string]map[string]string{
		"kata": nil, "gvisor": {"sandbox": "strict"}, "firecracker": {"sandbox": "strict", "team": "a"},
	} {
		if got := d.RuntimeClasses.For(labels); got != want {
			t.Errorf("labels %v get %q, want %q", labels, got, want)
		}
	}
}

func TestDeploymentFaults(t *testing.T) {
	for key, values := range map[string][]string{
		"runtime-class-name":        {"kata", "kata: {labels: {a: b}}", "A_b: {}"},
		"default-affinity-type":     {"", "spread"},
		"pod-is-always-schedulable": {"maybe"},
	} {
		for _, value := range values {
			err := NewStore(Default("example.com")).Update(map[string]map[string]string{DeploymentConfigMapName: {key: value}})[DeploymentConfigMapName]
			if err == nil || !strings.Contains(err.Error(), "'"+key+"' of config-deployment must be") {
				t.Errorf("%s: %q gives %v", key, value, err)
			}
		}
	}
}

// TestUnused covers misspelt keys, keys that only Knative's releases have, and keys that are validated without effect.
func TestUnused(t *testing.T) {
	tests := map[string]struct {
		data map[string]string
		want []UnusedKey
	}{
		DeploymentConfigMapName: {
			map[string]string{"_example": "", "queue-sidecar-image": "x", "progressDeadline": "1s", "progres-deadline": "1s"},
			[]UnusedKey{{"progres-deadline", "it is misspelt or not a setting of this server"}, {"queue-sidecar-image", "there is no sidecar"}},
		},
		AutoscalerConfigMapName: {
			map[string]string{"activator-capacity": "100", "stable-window": "60s", "scale-to-zero-grace-period": "30s"},
			[]UnusedKey{{"activator-capacity", "there is no activator"}, {"scale-to-zero-grace-period", "no route has to change before a Revision scales to zero"}},
		},
		DefaultsConfigMapName: {
			map[string]string{"container-name-template": "a"},
			[]UnusedKey{{"container-name-template", "unnamed containers are user-container and init-container"}},
		},
		DomainConfigMapName: {map[string]string{"_example": "", "example.org": ""}, nil},
		"config-logging": {
			map[string]string{"_example": "", "loglevel.autoscaler": "debug"},
			[]UnusedKey{{"loglevel.autoscaler", "use --v, --vmodule and --logging-format"}},
		},
		"other": {map[string]string{"key": "value"}, nil},
		servingv1.FeaturesConfigMapName: {
			map[string]string{"authentication-oidc": "disabled", "default-authorization-mode": "deny-all"},
			[]UnusedKey{{"default-authorization-mode", "authentication-oidc is not enabled"}},
		},
		NetworkConfigMapName: {
			map[string]string{
				"http-protocol": "Redirected", "certificate.class": ACMEClass, "acme-directory": "", "acme-email": "a@example.com", "acme-accept-terms": "true",
				"acme-challenge": "http-01", "acme-ca-bundle": "",
			},
			[]UnusedKey{
				{"acme-accept-terms", "acme-directory is not set"}, {"acme-challenge", "acme-directory is not set"}, {"acme-email", "acme-directory is not set"},
				{"certificate.class", "external-domain-tls is not Enabled"},
			},
		},
	}
	for name, test := range tests {
		if diff := cmp.Diff(test.want, Unused(name, test.data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestUnusedDependent checks that keys are not reported whose other key is set, which have the default value, or which do not apply because
// another value is invalid.
func TestUnusedDependent(t *testing.T) {
	for _, data := range []map[string]string{
		{"authentication-oidc": "Enabled", "default-authorization-mode": "deny-all"},
		{"default-authorization-mode": "allow-same-namespace"},
		{"authentication-oidc": "yes", "default-authorization-mode": "deny-all"},
	} {
		if got := Unused(servingv1.FeaturesConfigMapName, data); got != nil {
			t.Errorf("%v has unused keys %v", data, got)
		}
	}
	for _, data := range []map[string]string{
		{"external-domain-tls": "Enabled", "certificate-class": ACMEClass},
		{"autoTLS": "Enabled", "certificateClass": ACMEClass},
		{"external-domain-tls": "yes", "certificate-class": ACMEClass},
		{"certificate-class": SelfManagedClass, "acme-accept-terms": "false", "acme-email": ""},
		{
			"external-domain-tls": "Enabled", "certificate-class": ACMEClass,
			"acme-directory": "https://acme.example.com/", "acme-accept-terms": "true", "acme-email": "a@example.com", "acme-challenge": "http-01",
		},
	} {
		if got := Unused(NetworkConfigMapName, data); got != nil {
			t.Errorf("%v has unused keys %v", data, got)
		}
	}
}

// TestUnusedACME covers an ACME server that issues no certificates.
func TestUnusedACME(t *testing.T) {
	data := map[string]string{"acme-directory": "https://acme.example.com/", "acme-email": "a@example.com", "acme-challenge": ""}
	const disabled = "external-domain-tls is not Enabled"
	want := []UnusedKey{{"acme-directory", disabled}, {"acme-email", disabled}}
	if diff := cmp.Diff(want, Unused(NetworkConfigMapName, data)); diff != "" {
		t.Errorf("without external-domain-tls (-want +got):\n%s", diff)
	}
	data["external-domain-tls"] = "Enabled"
	got := Unused(NetworkConfigMapName, data)
	if len(got) != 2 || got[0].Key != "acme-directory" || got[1].Key != "acme-email" || !strings.HasPrefix(got[0].Reason, "certificate-class is not "+ACMEClass) {
		t.Errorf("with the class of the server's authority: %v", got)
	}
}

// TestAutoscalerClass checks that the class of another autoscaler is rejected with a reason.
func TestAutoscalerClass(t *testing.T) {
	err := NewStore(Default("example.com")).Update(map[string]map[string]string{AutoscalerConfigMapName: {"pod-autoscaler-class": "hpa.autoscaling.knative.dev"}})[AutoscalerConfigMapName]
	if err == nil || !strings.Contains(err.Error(), "must be 'kpa.autoscaling.knative.dev', because no HorizontalPodAutoscaler is created") {
		t.Errorf("class hpa gives %v", err)
	}
}

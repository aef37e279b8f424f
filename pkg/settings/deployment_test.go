package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
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

// TestUnused finds misspelt keys, keys that only Knative's releases have, and keys that are validated without effect.
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
		"config-observability": {
			map[string]string{"logging.enable-request-log": "true", "metrics.backend-destination": "prometheus"},
			[]UnusedKey{{"logging.enable-request-log", "use --access-log"}, {"metrics.backend-destination", "see docs/operations.md of this server"}},
		},
		"other": {map[string]string{"key": "value"}, nil},
	}
	for name, test := range tests {
		if diff := cmp.Diff(test.want, Unused(name, test.data)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestAutoscalerClass rejects the class of another autoscaler with a reason.
func TestAutoscalerClass(t *testing.T) {
	err := NewStore(Default("example.com")).Update(map[string]map[string]string{AutoscalerConfigMapName: {"pod-autoscaler-class": "hpa.autoscaling.knative.dev"}})[AutoscalerConfigMapName]
	if err == nil || !strings.Contains(err.Error(), "must be 'kpa.autoscaling.knative.dev', because no HorizontalPodAutoscaler is created") {
		t.Errorf("class hpa gives %v", err)
	}
}

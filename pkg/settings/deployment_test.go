package settings

import (
	"slices"
	"strings"
	"testing"
)

// A Revision gets the runtime class whose selector is the most specific one that matches.
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

// Keys without effect are found, and the class of another autoscaler is refused with what to use.
func TestUnused(t *testing.T) {
	got := Unused(DeploymentConfigMapName, map[string]string{"_example": "", "queue-sidecar-image": "x", "progressDeadline": "1s", "progres-deadline": "1s"})
	if want := []string{"progres-deadline", "queue-sidecar-image"}; !slices.Equal(got, want) {
		t.Errorf("unused keys are %v, want %v", got, want)
	}
	err := NewStore(Default("example.com")).Update(map[string]map[string]string{AutoscalerConfigMapName: {"pod-autoscaler-class": "hpa.autoscaling.knative.dev"}})[AutoscalerConfigMapName]
	if err == nil || !strings.Contains(err.Error(), "must be 'kpa.autoscaling.knative.dev', because no HorizontalPodAutoscaler is created") {
		t.Errorf("class hpa gives %v", err)
	}
}

package v1

import (
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

// Each field that a template may set has an effect on processes, or causes a warning.
func TestProcessFields(t *testing.T) {
	for name, tt := range map[string]struct {
		mask   fieldMask
		unused unused
		// used fields have an effect, are required, or request behavior that processes have anyway.
		used string
	}{
		"PodSpec":            {podSpecMask, processPodSpec, "automountServiceAccountToken containers enableServiceLinks initContainers securityContext serviceAccountName volumes"},
		"PodSecurityContext": {podSecurityContextMask, processPodSecurityContext, "runAsGroup runAsUser"},
		"Container": {containerMask, processContainer,
			"args command env envFrom image livenessProbe name ports readinessProbe resources securityContext startupProbe volumeMounts workingDir"},
		"initContainer":   {initContainerMask, processContainer, "args command env envFrom image name resources restartPolicy securityContext volumeMounts workingDir"},
		"SecurityContext": {securityContextMask, processSecurityContext, "privileged runAsGroup runAsUser"},
		"Resources":       {resourcesMask, processResources, "limits"},
		"VolumeMount":     {volumeMountMask, processVolumeMount, "mountPath name readOnly subPath"},
		"Probe": {probeMask, processProbe,
			"exec failureThreshold grpc httpGet initialDelaySeconds periodSeconds successThreshold tcpSocket timeoutSeconds"},
	} {
		want := slices.Sorted(slices.Values(slices.Concat(strings.Fields(tt.used), slices.Collect(maps.Keys(tt.unused)))))
		if got := slices.Sorted(slices.Values(slices.Concat(tt.mask.allowed, slices.Collect(maps.Keys(tt.mask.gated))))); !slices.Equal(got, want) {
			t.Errorf("%s may set %q, and these are known to have an effect or not: %q", name, got, want)
		}
	}
}

// Fields that only Pods have cause warnings if Revisions run as processes, and only then.
func TestProcessWarnings(t *testing.T) {
	s := &Service{}
	spec := &s.Spec.Template.Spec.PodSpec
	spec.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "a"}}
	spec.EnableServiceLinks = ptr.To(true)
	spec.SecurityContext = &corev1.PodSecurityContext{FSGroup: ptr.To[int64](1), RunAsUser: ptr.To[int64](1)}
	spec.Volumes = []corev1.Volume{
		{Name: "a", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory}}},
		{Name: "b", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "b"}}},
	}
	spec.InitContainers = []corev1.Container{{ImagePullPolicy: corev1.PullAlways}}
	spec.Containers = []corev1.Container{{
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{"cpu": resource.MustParse("1")}, Limits: corev1.ResourceList{"cpu": resource.MustParse("1")},
		},
		VolumeMounts: []corev1.VolumeMount{{Name: "a", MountPropagation: ptr.To(corev1.MountPropagationNone)}},
		StartupProbe: &corev1.Probe{TerminationGracePeriodSeconds: ptr.To[int64](1), PeriodSeconds: 1},
	}}
	want := []string{
		"spec.template.spec.imagePullSecrets", "spec.template.spec.enableServiceLinks", "spec.template.spec.securityContext.fsGroup",
		"spec.template.spec.volumes[0].emptyDir.medium", "spec.template.spec.initContainers[0].imagePullPolicy",
		"spec.template.spec.containers[0].resources.requests", "spec.template.spec.containers[0].volumeMounts[0].mountPropagation",
		"spec.template.spec.containers[0].startupProbe.terminationGracePeriodSeconds",
	}
	c := &Configuration{}
	c.Spec.Template = s.Spec.Template
	for kind, warnings := range map[string][]string{"Service": WarnProcessService(s, DefaultSettings()), "Configuration": WarnProcessConfiguration(c)} {
		for i, warning := range warnings {
			warnings[i], _, _ = strings.Cut(warning, ": has no effect: ")
		}
		if !slices.Equal(warnings, want) {
			t.Errorf("%s: warned of\n%s\nwant\n%s", kind, strings.Join(warnings, "\n"), strings.Join(want, "\n"))
		}
	}
	if got := WarnService(s, DefaultSettings()); len(got) > 0 {
		t.Errorf("in a cluster there are warnings %q", got)
	}
}

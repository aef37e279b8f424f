package v1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

const (
	noPod        = "Revisions run as processes of this machine, not as Pods"
	noImage      = "no image is pulled"
	noPrivileges = "processes run with the privileges of their user"
)

// processSpec maps JSON names of fields to the reasons why they have no effect for a process of this machine. It omits fields that
// prevent a Revision from running: its status reports those fields.
var (
	processPodSpec = unused{
		"affinity": noPod, "dnsConfig": noPod, "dnsPolicy": noPod, "hostAliases": noPod, "hostIPC": noPod, "hostNetwork": noPod,
		"hostPID": noPod, "imagePullSecrets": noImage, "nodeSelector": noPod, "priorityClassName": noPod, "runtimeClassName": noPod,
		"schedulerName": noPod, "shareProcessNamespace": noPod, "tolerations": noPod, "topologySpreadConstraints": noPod,
	}
	processPodSecurityContext = unused{
		"fsGroup": noPrivileges, "fsGroupChangePolicy": noPrivileges, "runAsNonRoot": noPrivileges, "seccompProfile": noPrivileges,
		"supplementalGroups": noPrivileges,
	}
	processContainer = unused{
		"imagePullPolicy": noImage, "terminationMessagePath": noPod, "terminationMessagePolicy": noPod,
	}
	processSecurityContext = unused{
		"allowPrivilegeEscalation": noPrivileges, "capabilities": noPrivileges, "readOnlyRootFilesystem": noPrivileges,
		"runAsNonRoot": noPrivileges, "seccompProfile": noPrivileges,
	}
	processResources   = unused{"requests": noPod}
	processVolumeMount = unused{"mountPropagation": noPod}
	processEmptyDir    = unused{"medium": noPod, "sizeLimit": noPod}
	processProbe       = unused{"terminationGracePeriodSeconds": "an instance must exit within timeoutSeconds"}
)

// unused maps JSON names of fields of a struct to the reason why they have no effect.
//
// +k8s:deepcopy-gen=false
// +k8s:openapi-gen=false
type unused map[string]string

// warn returns a warning for each of the fields that are set in the struct v, or in the struct v points to.
func (u unused) warn(v any, path *field.Path) []string {
	var warnings []string
	for _, name := range setFields(v) {
		if why, ok := u[name]; ok {
			warnings = append(warnings, duckv1.Unused(path.Child(name), why))
		}
	}
	return warnings
}

// WarnProcessService is like WarnService for Revisions that run as processes.
func WarnProcessService(s *Service, st Settings) []string {
	return append(WarnService(s, st), warnProcess(&s.Spec.Template.Spec.PodSpec)...)
}

// WarnProcessConfiguration is like WarnConfiguration for Revisions that run as processes.
func WarnProcessConfiguration(c *Configuration) []string {
	return append(WarnConfiguration(c), warnProcess(&c.Spec.Template.Spec.PodSpec)...)
}

func warnProcess(s *corev1.PodSpec) []string {
	path := field.NewPath("spec", "template", "spec")
	warnings := processPodSpec.warn(s, path)
	if ptr.Deref(s.EnableServiceLinks, false) {
		warnings = append(warnings, duckv1.Unused(path.Child("enableServiceLinks"), noPod))
	}
	warnings = append(warnings, processPodSecurityContext.warn(s.SecurityContext, path.Child("securityContext"))...)
	for i := range s.Volumes {
		warnings = append(warnings, processEmptyDir.warn(s.Volumes[i].EmptyDir, path.Child("volumes").Index(i).Child("emptyDir"))...)
	}
	for i := range s.InitContainers {
		warnings = append(warnings, warnProcessContainer(&s.InitContainers[i], path.Child("initContainers").Index(i))...)
	}
	for i := range s.Containers {
		warnings = append(warnings, warnProcessContainer(&s.Containers[i], path.Child("containers").Index(i))...)
	}
	return warnings
}

func warnProcessContainer(c *corev1.Container, path *field.Path) []string {
	warnings := processContainer.warn(c, path)
	warnings = append(warnings, processSecurityContext.warn(c.SecurityContext, path.Child("securityContext"))...)
	warnings = append(warnings, processResources.warn(&c.Resources, path.Child("resources"))...)
	for i := range c.VolumeMounts {
		warnings = append(warnings, processVolumeMount.warn(&c.VolumeMounts[i], path.Child("volumeMounts").Index(i))...)
	}
	warnings = append(warnings, processProbe.warn(c.LivenessProbe, path.Child("livenessProbe"))...)
	warnings = append(warnings, processProbe.warn(c.ReadinessProbe, path.Child("readinessProbe"))...)
	return append(warnings, processProbe.warn(c.StartupProbe, path.Child("startupProbe"))...)
}

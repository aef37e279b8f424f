package v1

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// reservedContainerName is the name of Knative's own container in a Revision's Pods.
const reservedContainerName = "queue-proxy"

// podSpecMask allows fields that are safe to scale without state, and behind features the fields that an operator accepts (serving 9.4.2).
var podSpecMask = fieldMask{
	allowed: []string{
		"automountServiceAccountToken", "containers", "enableServiceLinks", "imagePullSecrets",
		"serviceAccountName", "volumes",
	},
	gated: map[string]string{
		"affinity":                  featureAffinity,
		"dnsConfig":                 featureDNSConfig,
		"dnsPolicy":                 featureDNSPolicy,
		"hostAliases":               featureHostAliases,
		"hostIPC":                   featureHostIPC,
		"hostNetwork":               featureHostNetwork,
		"hostPID":                   featureHostPID,
		"initContainers":            featureInitContainers,
		"nodeSelector":              featureNodeSelector,
		"priorityClassName":         featurePriorityClassName,
		"runtimeClassName":          featureRuntimeClassName,
		"schedulerName":             featureSchedulerName,
		"securityContext":           featurePodSecurityContext,
		"shareProcessNamespace":     featureShareProcessNamespace,
		"tolerations":               featureTolerations,
		"topologySpreadConstraints": featureTopologySpreadConstraints,
	},
}

var localObjectReferenceMask = fieldMask{allowed: []string{"name"}}

// validatePodSpec validates the Pod part of a Revision. The host validates the contents of gated fields by a dry run of the Pod when
// a template changes.
func validatePodSpec(s *corev1.PodSpec, features Features, path *field.Path) field.ErrorList {
	masked := *s
	if masked.SecurityContext != nil && len(setFields(masked.SecurityContext)) == 0 {
		// Exported manifests often contain securityContext: {}, which has no effect.
		masked.SecurityContext = nil
	}
	errs := podSpecMask.validate(&masked, features, path)
	if masked.SecurityContext != nil && features.PodSecurityContext {
		errs = append(errs, validatePodSecurityContext(masked.SecurityContext, features, path.Child("securityContext"))...)
	}
	if s.ServiceAccountName != "" {
		for _, msg := range apivalidation.ValidateServiceAccountName(s.ServiceAccountName, false) {
			errs = append(errs, field.Invalid(path.Child("serviceAccountName"), s.ServiceAccountName, msg))
		}
	}
	if token := s.AutomountServiceAccountToken; token != nil && *token {
		errs = append(errs, field.Invalid(path.Child("automountServiceAccountToken"), true, "must be false when it is set"))
	}
	for i := range s.ImagePullSecrets {
		errs = append(errs, validatePullSecret(&s.ImagePullSecrets[i], features, path.Child("imagePullSecrets").Index(i))...)
	}
	volumes := volumesByName(s.Volumes)
	errs = append(errs, validateVolumes(s.Volumes, features, path.Child("volumes"))...)
	errs = append(errs, validateContainers(s, volumes, features, path)...)
	return append(errs, validateEveryVolumeMounted(s, path.Child("volumes"))...)
}

// validatePullSecret accepts an empty name, as core/v1 does, because chart templates produce it (serving
// 10.30-1).
func validatePullSecret(ref *corev1.LocalObjectReference, features Features, path *field.Path) field.ErrorList {
	errs := localObjectReferenceMask.validate(ref, features, path)
	if ref.Name == "" {
		return errs
	}
	return append(errs, validateReferenceName(ref.Name, path.Child("name"))...)
}

// validateContainers validates all containers, and the rules between them: unique names, and one port that receives requests
// (serving 9.4.2-1).
func validateContainers(s *corev1.PodSpec, volumes map[string]*corev1.Volume, features Features, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	containers := path.Child("containers")
	names := sets.New[string]()
	if len(s.Containers) == 0 {
		errs = append(errs, field.Required(containers, "must hold at least one container"))
	}
	if len(s.Containers) > 1 && !features.MultiContainer {
		errs = append(errs, field.Forbidden(containers,
			fmt.Sprintf("may not hold more than one container unless '%s' in %s is enabled", featureMultiContainer, FeaturesConfigMapName)))
	} else {
		errs = append(errs, validateOneServingPort(s.Containers, containers)...)
	}
	roles := containerRoles(s.Containers)
	for i := range s.Containers {
		v := containerValidator{role: roles[i], features: features, volumes: volumes}
		errs = append(errs, v.validate(&s.Containers[i], names, containers.Index(i))...)
	}
	if !podSpecMask.permits("initContainers", features) {
		return errs
	}
	for i := range s.InitContainers {
		v := containerValidator{role: roleInit, features: features, volumes: volumes}
		if IsNativeSidecar(&s.InitContainers[i]) {
			v.role = roleNativeSidecar
		}
		errs = append(errs, v.validate(&s.InitContainers[i], names, path.Child("initContainers").Index(i))...)
	}
	return errs
}

// IsNativeSidecar reports whether an init container keeps running beside the containers after it.
func IsNativeSidecar(init *corev1.Container) bool {
	return init.RestartPolicy != nil && *init.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// validateOneServingPort checks that exactly one of several containers has a port.
func validateOneServingPort(containers []corev1.Container, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	serving := -1
	for i := range containers {
		switch {
		case len(containers[i].Ports) == 0:
		case serving < 0:
			serving = i
		default:
			errs = append(errs, field.Forbidden(path.Index(i).Child("ports"),
				fmt.Sprintf("may not be set, because only one container takes requests and containers[%d] has a port", serving)))
		}
	}
	if len(containers) > 1 && serving < 0 {
		errs = append(errs, field.Required(path.Index(0).Child("ports"),
			"must be set on the one container that takes requests when there are several"))
	}
	return errs
}

// containerRoles returns the role of each container.
func containerRoles(containers []corev1.Container) []containerRole {
	roles := make([]containerRole, len(containers))
	someServes := len(containers) == 1
	for i := range containers {
		someServes = someServes || len(containers[i].Ports) > 0
	}
	for i := range containers {
		switch {
		case !someServes:
			roles[i] = roleUnknown
		case len(containers) == 1 || len(containers[i].Ports) > 0:
			roles[i] = roleServing
		default:
			roles[i] = roleSidecar
		}
	}
	return roles
}

// validateReferenceName validates the name of an object in the same namespace.
func validateReferenceName(name string, path *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(path, "")}
	}
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Subdomain(name) {
		errs = append(errs, field.Invalid(path, name, msg))
	}
	return errs
}

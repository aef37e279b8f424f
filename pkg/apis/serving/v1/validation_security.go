package v1

import (
	"fmt"
	"math"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// capabilityBindLowPorts is the only capability that is always allowed: it lets a server listen on ports below 1024, and the
// restricted Pod security standard allows it too.
const capabilityBindLowPorts corev1.Capability = "NET_BIND_SERVICE"

var (
	// securityContextMask deliberately omits seLinuxOptions, procMount and windowsOptions.
	securityContextMask = fieldMask{allowed: []string{
		"allowPrivilegeEscalation", "capabilities", "privileged", "readOnlyRootFilesystem", "runAsGroup",
		"runAsNonRoot", "runAsUser", "seccompProfile",
	}}
	podSecurityContextMask = fieldMask{allowed: []string{
		"fsGroup", "fsGroupChangePolicy", "runAsGroup", "runAsNonRoot", "runAsUser", "seccompProfile",
		"supplementalGroups",
	}}
	capabilitiesMask   = fieldMask{allowed: []string{"add", "drop"}}
	seccompProfileMask = fieldMask{allowed: []string{"localhostProfile", "type"}}
)

// validateSecurityContext validates the privileges of a container. serving 10.4-12 allows only runAsUser; the other allowed fields
// only drop privileges.
func validateSecurityContext(s *corev1.SecurityContext, features Features, path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	errs := securityContextMask.validate(s, features, path)
	errs = append(errs, validateID(s.RunAsUser, path.Child("runAsUser"))...)
	errs = append(errs, validateID(s.RunAsGroup, path.Child("runAsGroup"))...)
	if s.Privileged != nil && *s.Privileged {
		errs = append(errs, field.Forbidden(path.Child("privileged"), "may not be true"))
	}
	errs = append(errs, validateCapabilities(s.Capabilities, features, path.Child("capabilities"))...)
	return append(errs, validateSeccompProfile(s.SeccompProfile, features, path.Child("seccompProfile"))...)
}

// validatePodSecurityContext validates the privileges of all containers of a Pod.
func validatePodSecurityContext(s *corev1.PodSecurityContext, features Features, path *field.Path) field.ErrorList {
	errs := podSecurityContextMask.validate(s, features, path)
	errs = append(errs, validateID(s.RunAsUser, path.Child("runAsUser"))...)
	errs = append(errs, validateID(s.RunAsGroup, path.Child("runAsGroup"))...)
	errs = append(errs, validateID(s.FSGroup, path.Child("fsGroup"))...)
	for i := range s.SupplementalGroups {
		errs = append(errs, validateID(&s.SupplementalGroups[i], path.Child("supplementalGroups").Index(i))...)
	}
	return append(errs, validateSeccompProfile(s.SeccompProfile, features, path.Child("seccompProfile"))...)
}

// validateID validates the ID of a user or group.
func validateID(id *int64, path *field.Path) field.ErrorList {
	if id == nil {
		return nil
	}
	return validateRange(*id, 0, math.MaxInt32, path)
}

func validateCapabilities(c *corev1.Capabilities, features Features, path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	errs := capabilitiesMask.validate(c, features, path)
	for i, capability := range c.Add {
		if capability != capabilityBindLowPorts && !features.AddCapabilities {
			errs = append(errs, field.Forbidden(path.Child("add").Index(i),
				fmt.Sprintf("may only be '%s' unless '%s' in %s is enabled", capabilityBindLowPorts, featureAddCapabilities, FeaturesConfigMapName)))
		}
	}
	return errs
}

// validateSeccompProfile follows core/v1: a profile has a type, and a file on the node only for Localhost.
func validateSeccompProfile(p *corev1.SeccompProfile, features Features, path *field.Path) field.ErrorList {
	if p == nil {
		return nil
	}
	errs := seccompProfileMask.validate(p, features, path)
	supported := []corev1.SeccompProfileType{
		corev1.SeccompProfileTypeLocalhost, corev1.SeccompProfileTypeRuntimeDefault, corev1.SeccompProfileTypeUnconfined,
	}
	switch {
	case p.Type == "":
		errs = append(errs, field.Required(path.Child("type"), ""))
	case !slices.Contains(supported, p.Type):
		errs = append(errs, field.NotSupported(path.Child("type"), p.Type, supported))
	}
	local := path.Child("localhostProfile")
	switch named := p.LocalhostProfile != nil && *p.LocalhostProfile != ""; {
	case p.Type == corev1.SeccompProfileTypeLocalhost && !named:
		errs = append(errs, field.Required(local, "must be set when type is 'Localhost'"))
	case p.Type == corev1.SeccompProfileTypeLocalhost:
		errs = append(errs, validateRelativePath(*p.LocalhostProfile, local)...)
	case p.LocalhostProfile != nil:
		errs = append(errs, field.Forbidden(local, "may only be set when type is 'Localhost'"))
	}
	return errs
}

package podspec

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

const (
	allCapabilities corev1.Capability = "ALL"
	bindLowPorts    corev1.Capability = "NET_BIND_SERVICE"
	administer      corev1.Capability = "SYS_ADMIN"
	// lowPorts is the first port that needs no privilege.
	lowPorts = 1024
)

// restrict sets the security context of the restricted Pod Security level on a container, as far as its image allows: a
// container that may run as root keeps the capabilities to change its user, and meets the baseline level only. If
// restricted is true, the namespace would reject such a Pod, so the full context is set and the kubelet checks the image.
// The user's settings take precedence. image is nil if nothing is known about it.
func restrict(c *corev1.Container, pod *corev1.PodSecurityContext, image *Image, restricted bool) {
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	own := c.SecurityContext
	if pod == nil {
		pod = &corev1.PodSecurityContext{}
	}
	user := own.RunAsUser
	if user == nil {
		user = pod.RunAsUser
	}
	saysNonRoot := own.RunAsNonRoot
	if saysNonRoot == nil {
		saysNonRoot = pod.RunAsNonRoot
	}
	if saysNonRoot == nil && isNonRoot(user, image, restricted) {
		own.RunAsNonRoot = ptr.To(true)
	}
	if own.SeccompProfile == nil && pod.SeccompProfile == nil {
		own.SeccompProfile = &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}
	}
	added := ptr.Deref(own.Capabilities, corev1.Capabilities{}).Add
	if own.AllowPrivilegeEscalation == nil && !slices.Contains(added, administer) {
		own.AllowPrivilegeEscalation = ptr.To(false)
	}
	if !restricted && !ptr.Deref(saysNonRoot, false) && mayBeRoot(user, image) {
		return
	}
	if own.Capabilities == nil {
		own.Capabilities = &corev1.Capabilities{}
	}
	if own.Capabilities.Drop == nil {
		own.Capabilities.Drop = []corev1.Capability{allCapabilities}
	}
	low := slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.ContainerPort < lowPorts })
	if low && !slices.Contains(own.Capabilities.Add, bindLowPorts) {
		own.Capabilities.Add = append(own.Capabilities.Add, bindLowPorts)
	}
}

// isNonRoot reports whether runAsNonRoot may be set. The kubelet rejects a container with runAsNonRoot if it cannot verify
// the user.
func isNonRoot(user *int64, image *Image, restricted bool) bool {
	switch {
	case user != nil:
		return *user != 0
	case image != nil && image.NonRoot:
		return true
	default:
		return restricted
	}
}

// mayBeRoot reports whether a container runs as root or as an unknown user.
func mayBeRoot(user *int64, image *Image) bool {
	if user != nil {
		return *user == 0
	}
	return image == nil || image.MayBeRoot
}

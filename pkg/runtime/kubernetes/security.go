package kubernetes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/runtime/kubernetes/images"
)

const (
	allCapabilities corev1.Capability = "ALL"
	bindLowPorts    corev1.Capability = "NET_BIND_SERVICE"
	administer      corev1.Capability = "SYS_ADMIN"
	// lowPorts are below this number.
	lowPorts = 1024
)

// Restrict gives the containers of a Pod the security context that those of Revisions have where every image allows the
// restricted Pod Security level.
func Restrict(pod *corev1.PodSpec) {
	for _, containers := range [][]corev1.Container{pod.InitContainers, pod.Containers} {
		for i := range containers {
			restrict(&containers[i], pod.SecurityContext, nil, true)
		}
	}
}

// restrict gives a container the security context of the restricted Pod Security level, as far as its image allows:
// one that runs as root, for all that is known, keeps the capabilities it may need to become another user, and stays
// within the baseline level. A namespace that admits restricted Pods only would refuse it anyway, so that there the
// kubelet is left to find out. What the user says holds. image is nil where nothing is known of it.
func restrict(c *corev1.Container, pod *corev1.PodSecurityContext, image *images.Image, restricted bool) {
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

// isNonRoot tells whether runAsNonRoot may be set: the kubelet refuses containers that it then cannot tell not to run
// as root.
func isNonRoot(user *int64, image *images.Image, restricted bool) bool {
	switch {
	case user != nil:
		return *user != 0
	case image != nil && image.NonRoot():
		return true
	default:
		return restricted
	}
}

// mayBeRoot tells whether a container runs as root, or nobody knows.
func mayBeRoot(user *int64, image *images.Image) bool {
	if user != nil {
		return *user == 0
	}
	return image == nil || !image.Known || image.Root()
}

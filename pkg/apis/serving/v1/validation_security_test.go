package v1

import (
	"math"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// TestSecurityContext covers serving 10.4-12 and 10.19-1.
func TestSecurityContext(t *testing.T) {
	with := func(sc corev1.SecurityContext) func(*RevisionSpec) {
		return container(func(c *corev1.Container) { c.SecurityContext = &sc })
	}
	const at = "containers[0].securityContext."
	runTemplateCases(t, []templateCase{
		{name: "10.4-12: runAsUser", change: with(corev1.SecurityContext{RunAsUser: ptr.To[int64](0)})},
		{name: "10.19-1: greatest runAsUser", change: with(corev1.SecurityContext{RunAsUser: ptr.To[int64](math.MaxInt32)})},
		{
			name:   "10.19-1: out of range",
			change: with(corev1.SecurityContext{RunAsUser: ptr.To[int64](-1), RunAsGroup: ptr.To[int64](math.MaxInt32 + 1)}),
			want:   []fault{invalid(at+"runAsUser", "between 0 and 2147483647"), invalid(at+"runAsGroup", "")},
		},
		{name: "fields that drop privileges", change: with(corev1.SecurityContext{
			RunAsNonRoot: ptr.To(true), ReadOnlyRootFilesystem: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
			Privileged:     ptr.To(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_BIND_SERVICE"}},
			SeccompProfile: &corev1.SeccompProfile{Type: "RuntimeDefault"},
		})},
		{
			name: "what gives privileges",
			change: with(corev1.SecurityContext{
				Privileged: ptr.To(true), ProcMount: ptr.To(corev1.UnmaskedProcMount),
				SELinuxOptions: &corev1.SELinuxOptions{}, WindowsOptions: &corev1.WindowsSecurityContextOptions{},
			}),
			want: []fault{
				forbidden(at+"privileged", "may not be true"), forbidden(at+"procMount", "may not be set"),
				forbidden(at+"seLinuxOptions", ""), forbidden(at+"windowsOptions", ""),
			},
		},
		{
			name:   "capabilities",
			change: with(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"NET_BIND_SERVICE", "SYS_ADMIN"}}}),
			want:   []fault{forbidden(at+"capabilities.add[1]", "'kubernetes.containerspec-addcapabilities'")},
		},
		{
			name:     "capabilities when they are enabled",
			change:   with(corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}),
			features: func(f *Features) { f.AddCapabilities = true },
		},
		{name: "seccomp file", change: with(corev1.SecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: "Localhost", LocalhostProfile: ptr.To("a/b")},
		})},
		{
			name: "seccomp without type", change: with(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{}}),
			want: []fault{required(at+"seccompProfile.type", "")},
		},
		{
			name: "seccomp with another type", change: with(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "x"}}),
			want: []fault{notSupported(at+"seccompProfile.type", `"RuntimeDefault"`)},
		},
		{
			name: "seccomp without file", change: with(corev1.SecurityContext{SeccompProfile: &corev1.SeccompProfile{Type: "Localhost"}}),
			want: []fault{required(at+"seccompProfile.localhostProfile", "")},
		},
		{
			name: "seccomp with an unexpected file",
			change: with(corev1.SecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: "Unconfined", LocalhostProfile: ptr.To("a")},
			}),
			want: []fault{forbidden(at+"seccompProfile.localhostProfile", "only be set when type is 'Localhost'")},
		},
		{
			name: "seccomp file elsewhere",
			change: with(corev1.SecurityContext{
				SeccompProfile: &corev1.SeccompProfile{Type: "Localhost", LocalhostProfile: ptr.To("../a")},
			}),
			want: []fault{invalid(at+"seccompProfile.localhostProfile", "must not contain '..'")},
		},
		{
			name:     "the Pod's when it is enabled",
			features: func(f *Features) { f.PodSecurityContext = true },
			change: func(s *RevisionSpec) {
				s.SecurityContext = &corev1.PodSecurityContext{
					RunAsUser: ptr.To[int64](-1), SupplementalGroups: []int64{1, -1}, FSGroup: ptr.To[int64](2), Sysctls: []corev1.Sysctl{{}},
				}
			},
			want: []fault{
				invalid("securityContext.runAsUser", ""), invalid("securityContext.supplementalGroups[1]", ""),
				forbidden("securityContext.sysctls", "may not be set"),
			},
		},
	})
}

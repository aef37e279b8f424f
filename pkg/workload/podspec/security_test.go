package podspec

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestRestrict(t *testing.T) {
	full := func(nonRoot *bool) *corev1.SecurityContext {
		return &corev1.SecurityContext{
			RunAsNonRoot: nonRoot, AllowPrivilegeEscalation: ptr.To(false),
			Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		}
	}
	baseline := func() *corev1.SecurityContext {
		c := full(nil)
		c.Capabilities = nil
		return c
	}
	yes, no := ptr.To(true), ptr.To(false)
	tests := map[string]struct {
		own        *corev1.SecurityContext
		pod        *corev1.PodSecurityContext
		image      *Image
		restricted bool
		want       *corev1.SecurityContext
	}{
		"numeric user":                       {image: &Image{NonRoot: true}, want: full(yes)},
		"named user":                         {image: &Image{}, want: full(nil)},
		"named user, restricted namespace":   {image: &Image{}, restricted: true, want: full(yes)},
		"root":                               {image: &Image{MayBeRoot: true}, want: baseline()},
		"root by number and group":           {image: &Image{MayBeRoot: true}, want: baseline()},
		"unknown":                            {image: &Image{MayBeRoot: true}, want: baseline()},
		"unknown user, restricted namespace": {restricted: true, want: full(yes)},
		"root, other user in the Pod":        {image: &Image{MayBeRoot: true}, pod: &corev1.PodSecurityContext{RunAsUser: ptr.To[int64](7)}, want: full(yes)},
		"user sets runAsNonRoot: false":      {image: &Image{NonRoot: true}, pod: &corev1.PodSecurityContext{RunAsNonRoot: no}, want: full(nil)},
		"user sets runAsNonRoot: true":       {image: &Image{}, pod: &corev1.PodSecurityContext{RunAsNonRoot: yes}, want: full(nil)},
		"the user keeps capabilities":        {image: &Image{NonRoot: true}, own: &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{}}}, want: withDrop(full(yes))},
		"user allows privilege escalation":   {image: &Image{NonRoot: true}, own: &corev1.SecurityContext{AllowPrivilegeEscalation: yes}, want: withEscalation(full(yes))},
		"the user runs it as root":           {image: &Image{NonRoot: true}, own: &corev1.SecurityContext{RunAsUser: ptr.To[int64](0)}, want: withUser(baseline(), 0)},
		"the Pod has a seccomp profile":      {image: &Image{NonRoot: true}, pod: &corev1.PodSecurityContext{SeccompProfile: &corev1.SeccompProfile{}}, want: withoutSeccomp(full(yes))},
		"root, restricted, not resolved":     {restricted: true, image: &Image{MayBeRoot: true}, want: full(yes)},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := &corev1.Container{SecurityContext: test.own}
			restrict(c, test.pod, test.image, test.restricted)
			if diff := cmp.Diff(test.want, c.SecurityContext); diff != "" {
				t.Errorf("security context (-want +got):\n%s", diff)
			}
		})
	}
}

func withDrop(c *corev1.SecurityContext) *corev1.SecurityContext {
	c.Capabilities.Drop = []corev1.Capability{}
	return c
}

func withEscalation(c *corev1.SecurityContext) *corev1.SecurityContext {
	c.AllowPrivilegeEscalation = ptr.To(true)
	return c
}

func withUser(c *corev1.SecurityContext, user int64) *corev1.SecurityContext {
	c.RunAsUser = ptr.To(user)
	return c
}

func withoutSeccomp(c *corev1.SecurityContext) *corev1.SecurityContext {
	c.SeccompProfile = nil
	return c
}

package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestResources(t *testing.T) {
	list := func(pairs ...string) corev1.ResourceList {
		l := corev1.ResourceList{}
		for i := 0; i < len(pairs); i += 2 {
			l[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
		}
		return l
	}
	with := func(limits, requests corev1.ResourceList) func(*RevisionSpec) {
		return container(func(c *corev1.Container) { c.Resources.Limits, c.Resources.Requests = limits, requests })
	}
	const at = "containers[0].resources."
	runTemplateCases(t, []templateCase{
		{name: "10.18: cpu and memory", change: with(list("cpu", "1", "memory", "1Gi"), list("cpu", "1000m", "memory", "0"))},
		{name: "10.18: more kinds", change: with(list("nvidia.com/gpu", "1", "hugepages-2Mi", "2Mi", "ephemeral-storage", "1G"), nil)},
		{
			name: "request above limit", change: with(list("cpu", "1"), list("cpu", "1001m", "memory", "1Gi")),
			want: []fault{invalid(at+"requests[cpu]", "less than or equal to the cpu limit of 1")},
		},
		{
			name: "negative", change: with(list("cpu", "-1"), list("memory", "-1")),
			want: []fault{invalid(at+"limits[cpu]", "greater than or equal to 0"), invalid(at+"requests[memory]", "")},
		},
		{
			name: "names", change: with(list("CPU units", "1"), list("storage", "1")),
			want: []fault{invalid(at+"limits[CPU units]", ""), invalid(at+"requests[storage]", "must be one of cpu, memory")},
		},
		{
			name: "claims", change: container(func(c *corev1.Container) { c.Resources.Claims = []corev1.ResourceClaim{{Name: "a"}} }),
			want: []fault{forbidden(at+"claims", "only limits, requests may be set")},
		},
	})
}

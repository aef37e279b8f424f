package v1

import (
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestContainer covers serving 10.4-5, 10.4-6, 10.4-8 and 10.4-15.
func TestContainer(t *testing.T) {
	runTemplateCases(t, []templateCase{
		{name: "10.4: everything that is allowed", change: container(func(c *corev1.Container) {
			c.Args, c.Command, c.WorkingDir = []string{"a"}, []string{"b"}, "/c"
			c.TerminationMessagePath, c.TerminationMessagePolicy = "/dev/termination-log", "FallbackToLogsOnError"
			c.ImagePullPolicy = "IfNotPresent"
		})},
		{name: "10.4-5: digest", change: container(func(c *corev1.Container) {
			c.Image = "registry.example.com:5000/a/b@sha256:" + strings.Repeat("0", 64)
		})},
		{name: "10.4-5: short", change: container(func(c *corev1.Container) { c.Image = "nginx" })},
		{name: "10.4-5: none", change: container(func(c *corev1.Container) { c.Image = "" }), want: []fault{required("containers[0].image", "")}},
		{
			name: "10.4-5: not a reference", change: container(func(c *corev1.Container) { c.Image = "Has Spaces:x" }),
			want: []fault{invalid("containers[0].image", "must be an image reference")},
		},
		{
			name: "10.4-6: imagePullPolicy", change: container(func(c *corev1.Container) { c.ImagePullPolicy = "Sometimes" }),
			want: []fault{notSupported("containers[0].imagePullPolicy", `"Always", "IfNotPresent", "Never"`)},
		},
		{
			name: "10.4-15: terminationMessagePolicy", change: container(func(c *corev1.Container) { c.TerminationMessagePolicy = "file" }),
			want: []fault{notSupported("containers[0].terminationMessagePolicy", `"File"`)},
		},
		{
			name: "10.4-8: name", change: container(func(c *corev1.Container) { c.Name = "A.b" }),
			want: []fault{invalid("containers[0].name", "RFC 1123 label")},
		},
		{
			name: "no name", tamper: container(func(c *corev1.Container) { c.Name = "" }),
			want: []fault{required("containers[0].name", "")},
		},
		{
			name: "reserved name", change: container(func(c *corev1.Container) { c.Name = "queue-proxy" }),
			want: []fault{invalid("containers[0].name", "reserved")},
		},
		{
			name: "fields that are never allowed",
			change: container(func(c *corev1.Container) {
				c.Stdin, c.StdinOnce, c.TTY = true, true, true
				c.Lifecycle, c.VolumeDevices = &corev1.Lifecycle{}, []corev1.VolumeDevice{{}}
			}),
			want: []fault{
				forbidden("containers[0].stdin", ""), forbidden("containers[0].stdinOnce", ""), forbidden("containers[0].tty", ""),
				forbidden("containers[0].lifecycle", "only args, command, env"), forbidden("containers[0].volumeDevices", ""),
			},
		},
	})
}

// TestPorts covers serving 10.4-9, 10.15-1, 10.15-2 and 10.15-3.
func TestPorts(t *testing.T) {
	ports := func(ports ...corev1.ContainerPort) func(*RevisionSpec) {
		return container(func(c *corev1.Container) { c.Ports = ports })
	}
	cases := []templateCase{
		{name: "10.15: plain", change: ports(corev1.ContainerPort{ContainerPort: 1})},
		{name: "10.15-1: http1", change: ports(corev1.ContainerPort{ContainerPort: 65535, Name: "http1"})},
		{name: "10.15-1: h2c", change: ports(corev1.ContainerPort{Name: "h2c", Protocol: "TCP"})},
		{
			name: "10.15-1: other name", change: ports(corev1.ContainerPort{ContainerPort: 80, Name: "http"}),
			want: []fault{notSupported("containers[0].ports[0].name", `"h2c", "http1"`)},
		},
		{
			name: "10.15-3: protocol", change: ports(corev1.ContainerPort{ContainerPort: 80, Protocol: "UDP"}),
			want: []fault{notSupported("containers[0].ports[0].protocol", `"TCP"`)},
		},
		{
			name: "10.4-9: two", change: ports(corev1.ContainerPort{ContainerPort: 80}, corev1.ContainerPort{ContainerPort: 81}),
			want: []fault{{kind: "FieldValueTooMany", path: "containers[0].ports"}},
		},
		{
			name: "hostPort and hostIP", change: ports(corev1.ContainerPort{ContainerPort: 80, HostPort: 80, HostIP: "1.2.3.4"}),
			want: []fault{forbidden("containers[0].ports[0].hostPort", ""), forbidden("containers[0].ports[0].hostIP", "")},
		},
		{
			name: "10.15-2: too great", change: ports(corev1.ContainerPort{ContainerPort: math.MaxInt32}),
			want: []fault{invalid("containers[0].ports[0].containerPort", "between 1 and 65535")},
		},
		{
			name: "10.15-2: negative", change: ports(corev1.ContainerPort{ContainerPort: math.MinInt32}),
			want: []fault{invalid("containers[0].ports[0].containerPort", "between 1 and 65535")},
		},
	}
	for _, reserved := range []int32{8008, 8012, 8013, 8022, 9090, 9091} {
		cases = append(cases, templateCase{
			name: "reserved", change: ports(corev1.ContainerPort{ContainerPort: reserved}),
			want: []fault{invalid("containers[0].ports[0].containerPort", "reserved ports")},
		})
	}
	runTemplateCases(t, cases)
}

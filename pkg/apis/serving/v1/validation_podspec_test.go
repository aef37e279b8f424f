package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

// TestPodSpec covers serving 9.4.2-5 and 10.30-1.
func TestPodSpec(t *testing.T) {
	runTemplateCases(t, []templateCase{
		{name: "9.4.2-5: serviceAccountName", change: func(s *RevisionSpec) { s.ServiceAccountName = "my.account-1" }},
		{
			name: "9.4.2-5: bad serviceAccountName", change: func(s *RevisionSpec) { s.ServiceAccountName = "My_account" },
			want: []fault{invalid("serviceAccountName", "RFC 1123 subdomain")},
		},
		{name: "10.30-1: imagePullSecrets", change: func(s *RevisionSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "a"}, {}} }},
		{
			name: "10.30-1: bad imagePullSecrets", change: func(s *RevisionSpec) { s.ImagePullSecrets = []corev1.LocalObjectReference{{Name: "A b"}} },
			want: []fault{invalid("imagePullSecrets[0].name", "RFC 1123")},
		},
		{name: "enableServiceLinks", change: func(s *RevisionSpec) { s.EnableServiceLinks = ptr.To(true) }},
		{name: "automountServiceAccountToken false", change: func(s *RevisionSpec) { s.AutomountServiceAccountToken = ptr.To(false) }},
		{
			name: "automountServiceAccountToken true", change: func(s *RevisionSpec) { s.AutomountServiceAccountToken = ptr.To(true) },
			want: []fault{invalid("automountServiceAccountToken", "must be false")},
		},
		{name: "empty securityContext", change: func(s *RevisionSpec) { s.SecurityContext = &corev1.PodSecurityContext{} }},
		{
			name: "fields that are never allowed",
			change: func(s *RevisionSpec) {
				s.RestartPolicy, s.Hostname, s.TerminationGracePeriodSeconds = "Always", "h", ptr.To[int64](30)
				s.EphemeralContainers = []corev1.EphemeralContainer{{}}
			},
			want: []fault{
				forbidden("restartPolicy", "only automountServiceAccountToken, containers, enableServiceLinks, imagePullSecrets, serviceAccountName, volumes may be set here"),
				forbidden("hostname", ""), forbidden("terminationGracePeriodSeconds", ""), forbidden("ephemeralContainers", ""),
			},
		},
	})
}

// Each gated field is refused with the key that would allow it, and accepted with that key's feature enabled.
func TestGatedPodSpecFields(t *testing.T) {
	for path, tc := range map[string]struct {
		key string
		set func(*RevisionSpec)
	}{
		"affinity":                  {"kubernetes.podspec-affinity", func(s *RevisionSpec) { s.Affinity = &corev1.Affinity{} }},
		"topologySpreadConstraints": {"kubernetes.podspec-topologyspreadconstraints", func(s *RevisionSpec) { s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{}} }},
		"hostAliases":               {"kubernetes.podspec-hostaliases", func(s *RevisionSpec) { s.HostAliases = []corev1.HostAlias{{}} }},
		"nodeSelector":              {"kubernetes.podspec-nodeselector", func(s *RevisionSpec) { s.NodeSelector = map[string]string{"a": "b"} }},
		"runtimeClassName":          {"kubernetes.podspec-runtimeclassname", func(s *RevisionSpec) { s.RuntimeClassName = ptr.To("a") }},
		"tolerations":               {"kubernetes.podspec-tolerations", func(s *RevisionSpec) { s.Tolerations = []corev1.Toleration{{}} }},
		"securityContext":           {"kubernetes.podspec-securitycontext", func(s *RevisionSpec) { s.SecurityContext = &corev1.PodSecurityContext{RunAsNonRoot: ptr.To(true)} }},
		"shareProcessNamespace":     {"kubernetes.podspec-shareprocessnamespace", func(s *RevisionSpec) { s.ShareProcessNamespace = ptr.To(true) }},
		"priorityClassName":         {"kubernetes.podspec-priorityclassname", func(s *RevisionSpec) { s.PriorityClassName = "a" }},
		"schedulerName":             {"kubernetes.podspec-schedulername", func(s *RevisionSpec) { s.SchedulerName = "a" }},
		"initContainers":            {"kubernetes.podspec-init-containers", func(s *RevisionSpec) { s.InitContainers = []corev1.Container{{Image: "a"}} }},
		"dnsPolicy":                 {"kubernetes.podspec-dnspolicy", func(s *RevisionSpec) { s.DNSPolicy = "None" }},
		"dnsConfig":                 {"kubernetes.podspec-dnsconfig", func(s *RevisionSpec) { s.DNSConfig = &corev1.PodDNSConfig{} }},
		"hostIPC":                   {"kubernetes.podspec-hostipc", func(s *RevisionSpec) { s.HostIPC = true }},
		"hostPID":                   {"kubernetes.podspec-hostpid", func(s *RevisionSpec) { s.HostPID = true }},
		"hostNetwork":               {"kubernetes.podspec-hostnetwork", func(s *RevisionSpec) { s.HostNetwork = true }},
	} {
		runTemplateCases(t, []templateCase{
			{name: path, change: tc.set, want: []fault{forbidden(path, "unless '"+tc.key+"' in config-features is enabled")}},
			{name: path + " with " + tc.key, change: tc.set, features: func(f *Features) { *f.flags()[tc.key] = true }},
		})
	}
}

// TestSeveralContainers covers serving 9.4.2-1.
func TestSeveralContainers(t *testing.T) {
	port := []corev1.ContainerPort{{ContainerPort: 8080}}
	two := func(change func(a, b *corev1.Container)) func(*RevisionSpec) {
		return func(s *RevisionSpec) {
			s.Containers = []corev1.Container{{Image: "a", Ports: port}, {Image: "b"}}
			change(&s.Containers[0], &s.Containers[1])
		}
	}
	runTemplateCases(t, []templateCase{
		{name: "one with a port", change: two(func(a, b *corev1.Container) {})},
		{
			name: "9.4.2-1: feature off", change: two(func(a, b *corev1.Container) {}),
			features: func(f *Features) { f.MultiContainer = false },
			want:     []fault{forbidden("containers", "'multi-container' in config-features")},
		},
		{
			name: "two with ports", change: two(func(a, b *corev1.Container) { b.Ports = []corev1.ContainerPort{{ContainerPort: 8081}} }),
			want: []fault{forbidden("containers[1].ports", "containers[0] has a port")},
		},
		{
			name: "none with a port, and no further errors",
			change: two(func(a, b *corev1.Container) {
				a.Ports = nil
				a.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/"}}}
			}),
			want: []fault{required("containers[0].ports", "must be set on the one container that takes requests")},
		},
		{
			name: "names", change: two(func(a, b *corev1.Container) { a.Name, b.Name = "same", "same" }),
			want: []fault{duplicate("containers[1].name")},
		},
		{
			name:   "sidecars may set PORT, no container may set the others",
			change: two(func(a, b *corev1.Container) { b.Env = []corev1.EnvVar{{Name: "PORT", Value: "1"}, {Name: "K_SERVICE"}} }),
			want:   []fault{invalid("containers[1].env[1].name", "K_CONFIGURATION, K_REVISION, K_SERVICE")},
		},
		{
			name: "probes of sidecars",
			change: two(func(a, b *corev1.Container) {
				b.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}
			}),
			want: []fault{forbidden("containers[1].livenessProbe", "'multi-container-probing'")},
		},
		{
			name: "probes of sidecars need a port",
			change: two(func(a, b *corev1.Container) {
				b.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}
				b.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9999}}}
			}),
			features: func(f *Features) { f.MultiContainerProbing = true },
			want:     []fault{required("containers[1].livenessProbe.grpc.port", "must be set in a container without a port")},
		},
	})
}

func TestInitContainers(t *testing.T) {
	on := func(f *Features) { f.InitContainers = true }
	with := func(init corev1.Container) func(*RevisionSpec) {
		return func(s *RevisionSpec) { s.InitContainers = []corev1.Container{init} }
	}
	probe := &corev1.Probe{}
	runTemplateCases(t, []templateCase{
		{name: "plain", features: on, change: with(corev1.Container{Image: "a", Env: []corev1.EnvVar{{Name: "PORT"}}})},
		{
			name: "probes and ports", features: on,
			change: with(corev1.Container{
				Image: "a", LivenessProbe: probe, ReadinessProbe: probe, StartupProbe: probe,
				Ports: []corev1.ContainerPort{{ContainerPort: 8008}},
			}),
			want: []fault{
				forbidden("initContainers[0].livenessProbe", ""), forbidden("initContainers[0].readinessProbe", ""),
				forbidden("initContainers[0].startupProbe", ""), forbidden("initContainers[0].ports", ""),
			},
		},
		{
			name: "names are shared with containers", features: on, change: with(corev1.Container{Name: "x", Image: "a"}),
			tamper: func(s *RevisionSpec) { s.Containers[0].Name = "x" },
			want:   []fault{duplicate("initContainers[0].name")},
		},
		{
			name: "invalid fields, and a restart policy", features: on,
			change: with(corev1.Container{RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}),
			want:   []fault{required("initContainers[0].image", ""), forbidden("initContainers[0].restartPolicy", "")},
		},
		{
			name: "not validated when they are disabled", change: with(corev1.Container{}),
			want: []fault{forbidden("initContainers", "kubernetes.podspec-init-containers")},
		},
	})
}

// Native sidecars are init containers that keep running. They need their own feature, and have probes with explicit
// ports, but no port, because one container receives the requests.
func TestNativeSidecars(t *testing.T) {
	const key = "kubernetes.podspec-init-containers-restart-policy"
	sidecar := func(policy corev1.ContainerRestartPolicy, change func(*corev1.Container)) func(*RevisionSpec) {
		return func(s *RevisionSpec) {
			s.InitContainers = []corev1.Container{{Image: "proxy"}}
			if policy != "" {
				s.InitContainers[0].RestartPolicy = &policy
			}
			change(&s.InitContainers[0])
		}
	}
	nothing := func(*corev1.Container) {}
	probes := func(c *corev1.Container) {
		c.StartupProbe = tcpProbe(intstr.FromInt32(9000))
		c.ReadinessProbe, c.LivenessProbe = c.StartupProbe.DeepCopy(), c.StartupProbe.DeepCopy()
	}
	off := func(f *Features) { f.InitContainers = true }
	on := func(f *Features) { f.InitContainers, f.InitContainersRestartPolicy = true, true }
	const at = "initContainers[0]."
	runTemplateCases(t, []templateCase{
		{name: "disabled", change: sidecar("Always", nothing), features: off, want: []fault{forbidden(at+"restartPolicy", "unless '"+key+"' in config-features is enabled")}},
		{name: "enabled", change: sidecar("Always", nothing), features: on},
		{name: "without init containers", change: sidecar("Always", nothing), features: func(f *Features) { f.InitContainersRestartPolicy = true }, want: []fault{
			forbidden("initContainers", "unless 'kubernetes.podspec-init-containers' in config-features is enabled"),
		}},
		{name: "probes", change: sidecar("Always", probes), features: on},
		{name: "other policies", change: sidecar("OnFailure", nothing), features: on, want: []fault{notSupported(at+"restartPolicy", `"Always"`)}},
		{name: "probes of an ordinary init container", change: sidecar("", probes), features: on, want: []fault{
			forbidden(at+"livenessProbe", ""), forbidden(at+"readinessProbe", ""), forbidden(at+"startupProbe", ""),
		}},
		{name: "ports and lifecycle", change: sidecar("Always", func(c *corev1.Container) {
			c.Ports, c.Lifecycle = []corev1.ContainerPort{{ContainerPort: 9000}}, &corev1.Lifecycle{}
		}), features: on, want: []fault{forbidden(at+"ports", ""), forbidden(at+"lifecycle", "")}},
		{name: "a probe without a port", change: sidecar("Always", func(c *corev1.Container) { c.StartupProbe = &corev1.Probe{} }), features: on, want: []fault{
			required(at+"startupProbe.tcpSocket.port", "must be set in a container without a port"),
		}},
		{name: "policy of another container", change: container(func(c *corev1.Container) { c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways) }), features: on,
			want: []fault{forbidden("containers[0].restartPolicy", "")}},
	})
}

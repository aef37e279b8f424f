package v1

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

func tcpProbe(port intstr.IntOrString) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}}
}

// TestProbeHandlers covers serving 10.9-3, 10.11-1, 10.12-1, 10.12-4 and 10.14-1.
func TestProbeHandlers(t *testing.T) {
	probe := func(handler corev1.ProbeHandler) func(*RevisionSpec) {
		return container(func(c *corev1.Container) {
			c.ReadinessProbe = &corev1.Probe{ProbeHandler: handler}
			c.LivenessProbe = c.ReadinessProbe.DeepCopy()
			c.StartupProbe = c.ReadinessProbe.DeepCopy()
		})
	}
	// Each error applies to all three probes.
	thrice := func(faults ...fault) []fault {
		var all []fault
		for _, kind := range []string{"readinessProbe", "livenessProbe", "startupProbe"} {
			for _, f := range faults {
				all = append(all, fault{f.kind, "containers[0]." + kind + f.path, f.message})
			}
		}
		return all
	}
	const header = ".httpGet.httpHeaders[0]"
	runTemplateCases(t, []templateCase{
		{name: "10.9: none means TCP", change: probe(corev1.ProbeHandler{})},
		{name: "10.9-1, 10.11-1: exec", change: probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"a"}}})},
		{name: "10.11-1: exec without command", change: probe(corev1.ProbeHandler{Exec: &corev1.ExecAction{}}), want: thrice(required(".exec.command", ""))},
		{name: "10.9-3: httpGet", change: probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/healthz?full=1", Host: "127.0.0.1", Scheme: "HTTPS", HTTPHeaders: []corev1.HTTPHeader{{Name: "X-A", Value: "b"}},
		}})},
		{
			name: "10.12-4: scheme", change: probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Scheme: "https"}}),
			want: thrice(notSupported(".httpGet.scheme", `"HTTP", "HTTPS"`)),
		},
		{
			name: "10.12-1: host", change: probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Host: "http://a/"}}),
			want: thrice(invalid(".httpGet.host", "must be a host name")),
		},
		{
			name: "10.14-1: header without name", change: probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{HTTPHeaders: []corev1.HTTPHeader{{}}}}),
			want: thrice(required(header+".name", "")),
		},
		{
			name: "10.14-1: bad header", change: probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{HTTPHeaders: []corev1.HTTPHeader{{Name: "a b"}}}}),
			want: thrice(invalid(header+".name", "")),
		},
		{name: "grpc", change: probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Service: ptr.To("a")}})},
		{
			name: "two kinds", change: probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}, TCPSocket: &corev1.TCPSocketAction{}}),
			want: thrice(forbidden(".grpc", "together with tcpSocket")),
		},
		{
			name: "new fields of handlers", change: probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Protocol: ptr.To(corev1.HTTPProtocolHTTP2)}}),
			want: thrice(forbidden(".httpGet.protocol", "only host, httpHeaders, path, port, scheme")),
		},
		{
			name: "no kind", change: container(func(c *corev1.Container) { c.LivenessProbe = &corev1.Probe{} }),
			tamper: container(func(c *corev1.Container) { c.LivenessProbe.TCPSocket = nil }),
			want:   []fault{required("containers[0].livenessProbe", "exactly one of exec, grpc, httpGet, tcpSocket")},
		},
	})
}

func TestProbePorts(t *testing.T) {
	probe := func(port *corev1.ContainerPort, probed intstr.IntOrString) func(*RevisionSpec) {
		return container(func(c *corev1.Container) {
			if port != nil {
				c.Ports = []corev1.ContainerPort{*port}
			}
			c.ReadinessProbe = tcpProbe(probed)
		})
	}
	named := &corev1.ContainerPort{Name: "h2c", ContainerPort: 81}
	const at = "containers[0].readinessProbe.tcpSocket.port"
	runTemplateCases(t, []templateCase{
		{name: "none", change: probe(named, intstr.IntOrString{})},
		{name: "no name", change: probe(named, intstr.FromString(""))},
		{name: "same number", change: probe(named, intstr.FromInt32(81))},
		{name: "same name", change: probe(named, intstr.FromString("h2c"))},
		{name: "default port", change: probe(nil, intstr.FromInt32(8080))},
		{name: "other number", change: probe(named, intstr.FromInt32(8080))},
		{name: "no port at all", change: probe(named, intstr.FromInt32(-1)), want: []fault{invalid(at, "between 1 and 65535")}},
		{name: "number out of range", change: probe(named, intstr.FromInt32(65536)), want: []fault{invalid(at, "between 1 and 65535")}},
		{name: "a number as a name", change: probe(named, intstr.FromString("8080")), want: []fault{invalid(at, "must be a number or 'h2c'")}},
		{name: "other name", change: probe(named, intstr.FromString("http1")), want: []fault{invalid(at, "must be a number or 'h2c'")}},
		{name: "name of an unnamed port", change: probe(nil, intstr.FromString("http1")), want: []fault{invalid(at, "must be a number")}},
		{
			name: "grpc", change: container(func(c *corev1.Container) {
				c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 1}}}
			}),
		},
	})
}

func TestProbeNumbers(t *testing.T) {
	readiness := func(p corev1.Probe) func(*RevisionSpec) {
		return container(func(c *corev1.Container) { c.ReadinessProbe = &p })
	}
	liveness := func(p corev1.Probe) func(*RevisionSpec) {
		return container(func(c *corev1.Container) { c.LivenessProbe, c.StartupProbe = &p, p.DeepCopy() })
	}
	const ready, live, start = "containers[0].readinessProbe.", "containers[0].livenessProbe.", "containers[0].startupProbe."
	runTemplateCases(t, []templateCase{
		{name: "10.9: aggressive", change: readiness(corev1.Probe{SuccessThreshold: 3, InitialDelaySeconds: 1})},
		{name: "10.9: with a period", change: readiness(corev1.Probe{PeriodSeconds: 5, TimeoutSeconds: 2, FailureThreshold: 9})},
		{
			name: "aggressive with timeout and threshold", change: readiness(corev1.Probe{TimeoutSeconds: 1, FailureThreshold: 2}),
			want: []fault{forbidden(ready+"timeoutSeconds", "aggressive probing"), forbidden(ready+"failureThreshold", "aggressive probing")},
		},
		{
			name:   "10.9-2, 10.9-4, 10.9-5, 10.9-7: negative",
			change: readiness(corev1.Probe{PeriodSeconds: -1, TimeoutSeconds: -1, FailureThreshold: -1, SuccessThreshold: -1, InitialDelaySeconds: -1}),
			want: []fault{
				invalid(ready+"periodSeconds", "between 0 and"), invalid(ready+"timeoutSeconds", "between 1 and"),
				invalid(ready+"failureThreshold", "between 1 and"), invalid(ready+"successThreshold", "between 1 and"),
				invalid(ready+"initialDelaySeconds", "between 0 and"),
			},
		},
		{name: "liveness takes the host's defaults", change: liveness(corev1.Probe{TimeoutSeconds: 4, FailureThreshold: 1})},
		{
			name: "liveness passes at once", change: liveness(corev1.Probe{SuccessThreshold: 2}),
			want: []fault{invalid(live+"successThreshold", "must be 1"), invalid(start+"successThreshold", "must be 1")},
		},
		{
			name: "liveness negative", change: liveness(corev1.Probe{PeriodSeconds: -1, TimeoutSeconds: -1, FailureThreshold: -1, InitialDelaySeconds: -1}),
			want: []fault{
				invalid(live+"periodSeconds", ""), invalid(live+"timeoutSeconds", ""), invalid(live+"failureThreshold", ""), invalid(live+"initialDelaySeconds", ""),
				invalid(start+"periodSeconds", ""), invalid(start+"timeoutSeconds", ""), invalid(start+"failureThreshold", ""), invalid(start+"initialDelaySeconds", ""),
			},
		},
		{
			name: "terminationGracePeriodSeconds", change: readiness(corev1.Probe{TerminationGracePeriodSeconds: ptr.To[int64](1)}),
			want: []fault{forbidden(ready+"terminationGracePeriodSeconds", "may not be set in a readiness probe")},
		},
		{name: "terminationGracePeriodSeconds of others", change: liveness(corev1.Probe{TerminationGracePeriodSeconds: ptr.To[int64](1)})},
		{
			name: "terminationGracePeriodSeconds of 0", change: liveness(corev1.Probe{TerminationGracePeriodSeconds: ptr.To[int64](0)}),
			want: []fault{invalid(live+"terminationGracePeriodSeconds", "between 1 and"), invalid(start+"terminationGracePeriodSeconds", "between 1 and")},
		},
	})
}

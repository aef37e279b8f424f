package manifests

import (
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestRestricted checks that no Pod has a privilege that the restricted Pod Security level rejects, or could write to its image.
func TestRestricted(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for _, w := range workloads(t, objects) {
			pod, c := w.template.Spec, w.container(t)
			if pod.HostNetwork || pod.HostPID || pod.HostIPC {
				t.Errorf("%s shares a namespace of the host", w.name)
			}
			if !ptr.Deref(pod.SecurityContext.RunAsNonRoot, false) || ptr.Deref(pod.SecurityContext.RunAsUser, 0) == 0 {
				t.Errorf("%s may run as root", w.name)
			}
			if p := pod.SecurityContext.SeccompProfile; p == nil || p.Type != corev1.SeccompProfileTypeRuntimeDefault {
				t.Errorf("%s: seccomp profile is %v", w.name, p)
			}
			s := c.SecurityContext
			if ptr.Deref(s.AllowPrivilegeEscalation, true) || !ptr.Deref(s.ReadOnlyRootFilesystem, false) || ptr.Deref(s.Privileged, false) {
				t.Errorf("%s: %+v", w.name, s)
			}
			if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || len(s.Capabilities.Add) > 0 {
				t.Errorf("%s: capabilities are %+v", w.name, s.Capabilities)
			}
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/tmp" }) {
				t.Errorf("%s can write no temporary file", w.name)
			}
			for _, v := range pod.Volumes {
				if v.HostPath != nil {
					t.Errorf("%s mounts a path of the host", w.name)
				}
			}
		}
	})
}

func TestProbesAndResources(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for _, w := range workloads(t, objects) {
			c := w.container(t)
			// If etcd is in the Pod, its failures must not affect the readiness of gateway and broker.
			readiness := "/readyz"
			if slices.ContainsFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, "--etcd-peer-port=") }) {
				readiness += "?exclude=etcd&exclude=etcd-readiness&exclude=etcd-member"
			}
			// If liveness depended on etcd, all members would be restarted when the quorum is lost.
			for name, probe := range map[string]struct {
				probe *corev1.Probe
				path  string
			}{
				"startup":   {c.StartupProbe, "/livez?exclude=etcd"},
				"liveness":  {c.LivenessProbe, "/livez?exclude=etcd"},
				"readiness": {c.ReadinessProbe, readiness},
			} {
				if probe.probe == nil || probe.probe.HTTPGet == nil {
					t.Errorf("%s has no %s probe", w.name, name)
					continue
				}
				get := probe.probe.HTTPGet
				if _, found := w.port(t, get.Port.StrVal); !found || get.Path != probe.path || get.Scheme != corev1.URISchemeHTTPS {
					t.Errorf("%s: %s probe is %+v", w.name, name, get)
				}
			}
			if startup := time.Duration(c.StartupProbe.PeriodSeconds*c.StartupProbe.FailureThreshold) * time.Second; startup < time.Minute {
				t.Errorf("%s has %v to start", w.name, startup)
			}
			if c.Resources.Requests.Cpu().IsZero() || c.Resources.Requests.Memory().IsZero() || c.Resources.Limits.Memory().IsZero() {
				t.Errorf("%s: resources are %+v", w.name, c.Resources)
			}
			if !c.Resources.Limits.Cpu().IsZero() {
				t.Errorf("%s may be throttled", w.name)
			}
			const delay = "--shutdown-delay-duration="
			i := slices.IndexFunc(c.Args, func(arg string) bool { return strings.HasPrefix(arg, delay) })
			if i < 0 {
				t.Errorf("%s stops while endpoints still refer to it", w.name)
				continue
			}
			// hack/install.sh adds SERVER_FLAGS behind it, and the last value of a flag counts.
			if slices.ContainsFunc(c.Args[:i], func(arg string) bool { return strings.HasPrefix(arg, "--system-namespace=") }) {
				t.Errorf("%s: SERVER_FLAGS cannot change %s", w.name, c.Args[i])
			}
			d, err := time.ParseDuration(strings.TrimPrefix(c.Args[i], delay))
			if err != nil {
				t.Fatal(err)
			}
			// After the delay, API requests may take a minute, application requests ten.
			longest := time.Minute
			if _, gateway := w.port(t, "gateway"); gateway {
				longest = 10 * time.Minute
			}
			if grace := time.Duration(*w.template.Spec.TerminationGracePeriodSeconds) * time.Second; grace < d+longest {
				t.Errorf("%s is killed %v after SIGTERM, and may need %v", w.name, grace, d+longest)
			}
		}
	})
}

// TestIdentity checks that each Pod knows its UID, so that its Lease is deleted with it, and the addresses of its node, which tenants may not name.
func TestIdentity(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for _, w := range workloads(t, objects) {
			c := w.container(t)
			for flag, want := range map[string]struct{ variable, path string }{
				"--pod-name": {"POD_NAME", "metadata.name"},
				"--pod-uid":  {"POD_UID", "metadata.uid"},
				"--pod-ip":   {"POD_IP", "status.podIP"},
				"--node-ips": {"NODE_IPS", "status.hostIPs"},
			} {
				if !slices.Contains(c.Args, flag+"=$("+want.variable+")") {
					t.Errorf("%s has no flag %s", w.name, flag)
				}
				if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool {
					return e.Name == want.variable && e.ValueFrom != nil && e.ValueFrom.FieldRef != nil && e.ValueFrom.FieldRef.FieldPath == want.path
				}) {
					t.Errorf("%s has no variable %s of %s", w.name, want.variable, want.path)
				}
			}
		}
	})
}

// TestRollout checks that one Pod is replaced at a time.
func TestRollout(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for _, s := range of[appsv1.StatefulSet](t, objects, "StatefulSet") {
			update := s.Spec.UpdateStrategy
			// hack/install.sh reads the partition.
			if update.Type != appsv1.RollingUpdateStatefulSetStrategyType || ptr.Deref(update.RollingUpdate.Partition, -1) != 0 || update.RollingUpdate.MaxUnavailable != nil {
				t.Errorf("StatefulSet %s is updated by %+v", s.Name, update)
			}
			if s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement || s.Spec.MinReadySeconds == 0 {
				t.Errorf("StatefulSet %s: %s, %d s", s.Name, s.Spec.PodManagementPolicy, s.Spec.MinReadySeconds)
			}
			replicas := slices.IndexFunc(s.Spec.Template.Spec.Containers[0].Env, func(e corev1.EnvVar) bool { return e.Name == "REPLICAS" })
			if replicas < 0 || s.Spec.Template.Spec.Containers[0].Env[replicas].Value != strconv.Itoa(int(*s.Spec.Replicas)) {
				t.Errorf("StatefulSet %s has %d replicas, but their flags differ", s.Name, *s.Spec.Replicas)
			}
		}
		for _, d := range of[appsv1.Deployment](t, objects, "Deployment") {
			if r := d.Spec.Strategy.RollingUpdate; r == nil || r.MaxUnavailable.IntValue() != 0 || r.MaxSurge.IntValue() != 1 {
				t.Errorf("Deployment %s is updated by %+v", d.Name, r)
			}
		}
	})
}

// TestDisruptions checks that one replica of a workload may be evicted at a time, and replicas are spread.
func TestDisruptions(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		all := workloads(t, objects)
		for _, w := range all {
			var budgets []string
			for _, b := range of[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget") {
				if !labels.SelectorFromSet(b.Spec.Selector.MatchLabels).Matches(labels.Set(w.template.Labels)) {
					continue
				}
				budgets = append(budgets, b.Name)
				if b.Spec.MaxUnavailable.IntValue() != 1 {
					t.Errorf("PodDisruptionBudget %s allows %s unavailable Pods", b.Name, b.Spec.MaxUnavailable)
				}
			}
			switch {
			case w.replicas == 1 && len(budgets) > 0:
				t.Errorf("%s is alone, and the drain of its node would wait for %v", w.name, budgets)
			case w.replicas > 1 && len(budgets) != 1:
				t.Errorf("%s has the PodDisruptionBudgets %v", w.name, budgets)
			case w.replicas > 1 && w.template.Spec.Affinity == nil && len(w.template.Spec.TopologySpreadConstraints) < 2:
				t.Errorf("%s is not spread over nodes and zones", w.name)
			}
			// If the selector matched Pods of other workloads, they would be replaced by this one's.
			for _, other := range all {
				if other.name != w.name && labels.SelectorFromSet(w.selector).Matches(labels.Set(other.template.Labels)) {
					t.Errorf("%s selects the Pods of %s", w.name, other.name)
				}
			}
		}
	})
}

// TestFlags checks that the server accepts all flags in the manifests.
func TestFlags(t *testing.T) {
	binary, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	help, err := exec.CommandContext(t.Context(), binary, "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for word := range strings.FieldsSeq(string(help)) {
		known[word] = true
	}
	each(t, func(t *testing.T, objects objects) {
		for _, w := range workloads(t, objects) {
			c := w.container(t)
			for _, arg := range c.Args {
				flag, value, _ := strings.Cut(arg, "=")
				if !known[flag] {
					t.Errorf("%s: the server has no flag %s", w.name, flag)
				}
				if variable, found := strings.CutPrefix(value, "$("); found {
					variable = strings.TrimSuffix(variable, ")")
					if !slices.ContainsFunc(c.Env, func(e corev1.EnvVar) bool { return e.Name == variable }) {
						t.Errorf("%s: %s is not set", w.name, variable)
					}
				}
			}
		}
	})
}

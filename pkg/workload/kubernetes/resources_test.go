package kubernetes

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/kubernetes/images"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/podspec"
)

// known returns a resolution in which the images of all containers are equal except for their names.
func known(image images.Image, containers ...string) resolution {
	found := resolution{images: map[string]*images.Image{}}
	for _, c := range containers {
		image.Reference = c + "@digest"
		found.images[c] = ptr.To(image)
	}
	return found
}

func TestDeployment(t *testing.T) {
	revision := newRevision(func(r *servingv1.Revision) {
		r.Annotations = map[string]string{
			servingv1.ProgressDeadlineAnnotationKey: "90s", servingv1.CreatorAnnotationKey: "ann", "example.com/mine": "yes",
		}
		r.Labels["app"] = "mine"
	})
	got := newDeployment(revision, plan{
		images: known(images.Image{User: "65532:65532", Known: true}, "user-container"), replicas: 2, progressDeadline: time.Minute,
	})
	labels := map[string]string{
		"app":                               "mine",
		"serving.knative.dev/service":       "cart",
		"serving.knative.dev/configuration": "cart",
		"serving.knative.dev/revision":      "cart-00001",
		"serving.knative.dev/revisionUID":   "uid-1",
	}
	annotations := map[string]string{servingv1.ProgressDeadlineAnnotationKey: "90s", "example.com/mine": "yes"}
	meta := metav1.ObjectMeta{
		Namespace: "shop", Name: "cart-00001-deployment", Labels: labels, Annotations: annotations,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: "serving.knative.dev/v1", Kind: "Revision", Name: "cart-00001", UID: "uid-1",
			Controller: ptr.To(true), BlockOwnerDeletion: ptr.To(true),
		}},
	}
	if diff := cmp.Diff(meta, got.ObjectMeta); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"serving.knative.dev/revisionUID": "uid-1"}, got.Spec.Selector.MatchLabels); diff != "" {
		t.Errorf("selector (-want +got):\n%s", diff)
	}
	if *got.Spec.Replicas != 2 || *got.Spec.ProgressDeadlineSeconds != 90 || got.Spec.Strategy.RollingUpdate.MaxUnavailable.IntValue() != 0 {
		t.Errorf("spec %+v, want 2 replicas, 90 s to progress, none unavailable", got.Spec)
	}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: annotations},
		Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: ptr.To[int64](60),
			Containers: []corev1.Container{{
				Name: "user-container", Image: "user-container@digest",
				// serving 10.5: the variables of the runtime contract.
				Env: []corev1.EnvVar{
					{Name: "K_SERVICE", Value: "cart"}, {Name: "K_CONFIGURATION", Value: "cart"},
					{Name: "K_REVISION", Value: "cart-00001"}, {Name: "PORT", Value: "8080"},
				},
				Ports: []corev1.ContainerPort{{ContainerPort: 8080, Protocol: corev1.ProtocolTCP}},
				ReadinessProbe: &corev1.Probe{
					ProbeHandler:  corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}},
					PeriodSeconds: 1, TimeoutSeconds: 1, SuccessThreshold: 1, FailureThreshold: 3,
				},
				Lifecycle:                &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: 10}}},
				TerminationMessagePolicy: corev1.TerminationMessageFallbackToLogsOnError,
				SecurityContext: &corev1.SecurityContext{
					RunAsNonRoot: ptr.To(true), AllowPrivilegeEscalation: ptr.To(false),
					Capabilities:   &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
					SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
				},
			}},
		},
	}
	if diff := cmp.Diff(template, got.Spec.Template); diff != "" {
		t.Errorf("template (-want +got):\n%s", diff)
	}
}

func TestDeploymentOfSeveralContainers(t *testing.T) {
	revision := newRevision(func(r *servingv1.Revision) {
		r.Spec.PodSpec = corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "prepare"}},
			Containers: []corev1.Container{
				{Name: "sidecar", Env: []corev1.EnvVar{{Name: "PORT", Value: "1234"}}},
				{Name: "main", Ports: []corev1.ContainerPort{{Name: "h2c", ContainerPort: 90}}, Env: []corev1.EnvVar{{Name: "URL", Value: "http://localhost:$(PORT)"}}},
			},
			Volumes: []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		}
		r.Spec.SetDefaults()
	})
	spec := newDeployment(revision, plan{images: known(images.Image{Known: true, User: "1"}, "prepare", "sidecar", "main")}).Spec.Template.Spec
	if len(spec.Containers) != 2 || len(spec.InitContainers) != 1 || len(spec.Volumes) != 1 {
		t.Fatalf("%d containers, %d init containers, %d volumes, want 2, 1, 1: only the user's", len(spec.Containers), len(spec.InitContainers), len(spec.Volumes))
	}
	variables := func(c *corev1.Container) map[string]string {
		all := map[string]string{}
		for _, e := range c.Env {
			all[e.Name] = e.Value
		}
		return all
	}
	sidecar, main := &spec.Containers[0], &spec.Containers[1]
	k := map[string]string{"K_SERVICE": "cart", "K_CONFIGURATION": "cart", "K_REVISION": "cart-00001", "PORT": "1234"}
	if diff := cmp.Diff(k, variables(sidecar)); diff != "" {
		t.Errorf("variables of the sidecar (-want +got):\n%s", diff)
	}
	k["PORT"], k["URL"] = "90", "http://localhost:$(PORT)"
	if diff := cmp.Diff(k, variables(main)); diff != "" {
		t.Errorf("variables of the serving container (-want +got):\n%s", diff)
	}
	if last := main.Env[len(main.Env)-1].Name; last != "URL" {
		t.Errorf("last variable %s, want URL, which refers to PORT", last)
	}
	if sidecar.ReadinessProbe != nil || main.ReadinessProbe.TCPSocket.Port.IntValue() != 90 {
		t.Errorf("readiness probes %v, %v, want none and TCP at 90", sidecar.ReadinessProbe, main.ReadinessProbe)
	}
	if sidecar.Lifecycle == nil || main.Lifecycle == nil || spec.InitContainers[0].Lifecycle != nil {
		t.Error("want preStop hooks on all containers, and on no init container")
	}
	if diff := cmp.Diff([]corev1.Capability{"NET_BIND_SERVICE"}, main.SecurityContext.Capabilities.Add); diff != "" {
		t.Errorf("capabilities of the container at port 90 (-want +got):\n%s", diff)
	}
	if spec.InitContainers[0].Image != "prepare@digest" {
		t.Errorf("image of the init container %q, want it by digest", spec.InitContainers[0].Image)
	}
}

// TestDeploymentDefaults checks that the operator's runtime class and affinity apply to templates without them
// (config-deployment).
func TestDeploymentDefaults(t *testing.T) {
	pod := func(change func(*servingv1.Revision)) corev1.PodSpec {
		return newDeployment(newRevision(change), plan{runtimeClass: "kata", spread: true}).Spec.Template.Spec
	}
	got := pod(func(*servingv1.Revision) {})
	if got.RuntimeClassName == nil || *got.RuntimeClassName != "kata" {
		t.Errorf("runtime class %v, want kata", got.RuntimeClassName)
	}
	if terms := got.Affinity.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) != 1 ||
		terms[0].PodAffinityTerm.TopologyKey != corev1.LabelHostname || terms[0].PodAffinityTerm.LabelSelector.MatchLabels[podspec.RevisionLabelKey] != newRevision().Name {
		t.Errorf("affinity %v, want a preference for nodes without a Pod of the Revision", got.Affinity)
	}
	got = pod(func(r *servingv1.Revision) {
		r.Spec.RuntimeClassName, r.Spec.Affinity = ptr.To("own"), &corev1.Affinity{}
	})
	if *got.RuntimeClassName != "own" || got.Affinity.PodAntiAffinity != nil {
		t.Errorf("runtime class %q, affinity %v, want the values of the template", *got.RuntimeClassName, got.Affinity)
	}
}

// TestDeploymentWithNativeSidecar checks that a native sidecar has the variables of other containers beside the serving one
// but no hook, because the kubelet stops it after them.
func TestDeploymentWithNativeSidecar(t *testing.T) {
	revision := newRevision(func(r *servingv1.Revision) {
		r.Spec.PodSpec = corev1.PodSpec{
			InitContainers: []corev1.Container{{
				Name: "proxy", RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways),
				StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9000)}}},
			}},
			Containers: []corev1.Container{{Name: "main", ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
				HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(9090)},
			}}}},
		}
		r.Spec.SetDefaults()
	})
	spec := newDeployment(revision, plan{images: known(images.Image{Known: true, User: "1"}, "proxy", "main"), drainHost: "drain"}).Spec.Template.Spec
	proxy, main := &spec.InitContainers[0], &spec.Containers[0]
	if !servingv1.IsNativeSidecar(proxy) || proxy.Lifecycle != nil || len(proxy.Env) != 3 {
		t.Errorf("native sidecar %+v, want it with three variables and without hooks", proxy)
	}
	if got := proxy.StartupProbe; got.PeriodSeconds != 1 || got.TCPSocket.Port.IntValue() != 9000 {
		t.Errorf("startup probe %v, want it at 9000 each second", got)
	}
	if got := main.ReadinessProbe.HTTPGet.Port.IntValue(); got != 9090 {
		t.Errorf("the readiness probe is at port %d, want the named one", got)
	}
}

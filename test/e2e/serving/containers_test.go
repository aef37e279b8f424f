package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// relayed is the path at which the application forwards requests to a URL.
func relayed(service, to string) string { return service + "/relay?to=" + url.QueryEscape(to) }

// TestSidecar covers a Pod with two containers: one receives the requests and forwards them to the other, and both share an
// emptyDir and the environment (serving 7.2).
func TestSidecar(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "sidecar", nil)
	service := s.deploy(t, s.app("hello", pod(func(spec *corev1.PodSpec) {
		spec.Containers[0].Name = "main"
		spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 8080}}
		spec.Containers = append(spec.Containers, corev1.Container{
			Name: "side", Image: s.image, Env: []corev1.EnvVar{{Name: "PORT", Value: "8081"}, {Name: "TARGET", Value: "side"}},
		})
		spec.Volumes = []corev1.Volume{{Name: "shared", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
		for i := range spec.Containers {
			spec.Containers[i].VolumeMounts = []corev1.VolumeMount{{Name: "shared", MountPath: "/shared"}}
		}
	})))
	const side = "http://localhost:8081"
	if main, beside := s.get(t, service.Status.URL), s.get(t, relayed(service.Status.URL, side)); main != "Hello World!\n" || beside != "Hello side!\n" {
		t.Errorf("the containers answer %q and %q", main, beside)
	}
	if got := decoded[infoReport](t, s.get(t, relayed(service.Status.URL, side+"/info"))).Env; got["K_REVISION"] != "hello-00001" || got["PORT"] != "8081" {
		t.Errorf("the sidecar's environment has K_REVISION %q and PORT %q", got["K_REVISION"], got["PORT"])
	}
	if a, err := ask(t.Context(), s.http, http.MethodPut, relayed(service.Status.URL, file(side, "/shared/note")), nil, strings.NewReader("from the side")); err != nil || a.code != http.StatusNoContent {
		t.Fatalf("writing by the sidecar: %+v, %v", a, err)
	}
	if got := s.get(t, file(service.Status.URL, "/shared/note")); got != "from the side" {
		t.Errorf("the sidecar's file contains %q", got)
	}
	revision := s.revision(t, service)
	if got := revision.Status.ContainerStatuses; len(got) != 2 || got[0].Name != "main" || got[1].Name != "side" || !strings.Contains(got[1].ImageDigest, "@sha256:") {
		t.Errorf("status.containerStatuses is %+v", got)
	}
	pod := s.untilPods(t, revision.Name, 1)[0].Name
	s.print(t, revision.Name, "marker")
	until(t, "the log names the container of each line", func() error {
		if log := s.log(t, revision.Name, ""); !strings.Contains(log, fmt.Sprintf("[%s main] ", pod)) || !strings.Contains(log, "marker") {
			return fmt.Errorf("it is %q", log)
		}
		return nil
	})
}

// TestInitContainers covers the features for init containers and for native sidecars, which are rejected without them
// (config-features). An init container completes before the serving container starts. A native sidecar starts before it and is
// restarted when it exits, which is not a failure of the Revision.
func TestInitContainers(t *testing.T) {
	t.Parallel()
	const (
		initContainers = "kubernetes.podspec-init-containers"
		nativeSidecars = "kubernetes.podspec-init-containers-restart-policy"
		sidecar        = "http://localhost:8081"
	)
	s := newSpace(t, "init", nil)
	service := s.app("hello", pod(func(spec *corev1.PodSpec) {
		// The kubelet restarts a native sidecar whose probe fails too often, however slow the machine is.
		probe := &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(8081)}},
			PeriodSeconds: 1, FailureThreshold: int32(patience.Seconds()),
		}
		spec.InitContainers = []corev1.Container{
			{
				Name: "proxy", Image: s.image, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways), StartupProbe: probe,
				Env: []corev1.EnvVar{{Name: "PORT", Value: "8081"}, {Name: "TARGET", Value: "proxy"}},
			},
			{Name: "prepare", Image: s.image, Env: []corev1.EnvVar{{Name: "START_FAIL", Value: "0:prepared"}}},
		}
	}))
	// A replica may not have observed a setting yet.
	create := func(want string) {
		t.Helper()
		until(t, fmt.Sprintf("creating the Service is answered with %q", want), func() error {
			_, err := s.Admin.Knative.ServingV1().Services(s.namespace).Create(t.Context(), service, metav1.CreateOptions{})
			if got := fmt.Sprint(err); !strings.Contains(got, want) {
				return fmt.Errorf("the answer is %q", got)
			}
			return nil
		})
	}
	const refused = "Forbidden: may not be set unless '%s' in config-features is enabled"
	create("spec.template.spec.initContainers: " + fmt.Sprintf(refused, initContainers))
	s.enable(t, initContainers)
	create("spec.template.spec.initContainers[0].restartPolicy: " + fmt.Sprintf(refused, nativeSidecars))
	s.enable(t, nativeSidecars)
	create("<nil>")
	service = s.ready(t, service.Name)
	if main, beside := s.get(t, service.Status.URL), s.get(t, relayed(service.Status.URL, sidecar)); main != "Hello World!\n" || beside != "Hello proxy!\n" {
		t.Errorf("the containers answer %q and %q", main, beside)
	}
	revision := s.revision(t, service)
	if got := revision.Status.InitContainerStatuses; len(got) != 2 || got[0].Name != "proxy" || got[1].Name != "prepare" ||
		!strings.Contains(got[0].ImageDigest, "@sha256:") || !strings.Contains(got[1].ImageDigest, "@sha256:") {
		t.Errorf("status.initContainerStatuses is %+v", got)
	}
	pod := s.untilPods(t, revision.Name, 1)[0]
	if got := pod.Status.InitContainerStatuses; len(got) != 2 || got[0].State.Running == nil || got[0].RestartCount != 0 ||
		got[1].State.Terminated == nil || got[1].State.Terminated.ExitCode != 0 ||
		got[0].State.Running.StartedAt.After(got[1].State.Terminated.StartedAt.Time) {
		t.Errorf("the init containers are %+v", got)
	}
	until(t, "the init container has a log", func() error {
		if got, want := s.log(t, revision.Name, "container=prepare"), fmt.Sprintf("[%s] prepared\n", pod.Name); got != want {
			return fmt.Errorf("it is %q, want %q", got, want)
		}
		return nil
	})

	// The process exits before it responds, which the serving container reports.
	if _, err := ask(t.Context(), s.http, http.MethodGet, relayed(service.Status.URL, sidecar+"/crash"), nil, nil); err != nil {
		t.Fatal(err)
	}
	until(t, "the native sidecar runs again in the same Pod", func() error {
		got := read(t, s.Host.CoreV1().Pods(s.namespace), pod.Name)
		if proxy, main := got.Status.InitContainerStatuses[0], got.Status.ContainerStatuses[0]; proxy.RestartCount != 1 || proxy.State.Running == nil || main.RestartCount != 0 {
			return fmt.Errorf("the native sidecar is %+v, the serving container %+v", proxy, main)
		}
		if a, err := ask(t.Context(), s.http, http.MethodGet, relayed(service.Status.URL, sidecar), nil, nil); err != nil || a.body != "Hello proxy!\n" {
			return fmt.Errorf("the native sidecar answers %+v, %w", a, err)
		}
		return nil
	})
	now := s.revision(t, service).Status.Conditions
	for _, c := range []duckv1.ConditionType{duckv1.ConditionReady, servingv1.RevisionConditionContainerHealthy} {
		if diff := cmp.Diff(revision.Status.Conditions.Get(c), now.Get(c)); diff != "" {
			t.Errorf("%s changes because the native sidecar was started again (-before +after):\n%s", c, diff)
		}
	}
}

// enable enables a feature of config-features until the test ends.
func (s *space) enable(t *testing.T, feature string) {
	t.Helper()
	s.set(t, "config-features", map[string]string{feature: "enabled"})
}

// set sets keys of a ConfigMap of the system namespace until the test ends.
func (s *space) set(t *testing.T, name string, values map[string]string) {
	t.Helper()
	maps := s.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	config, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		config, err = maps.Get(t.Context(), name, metav1.GetOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	write := func(ctx context.Context, values map[string]any) error {
		patch, err := json.Marshal(map[string]any{"data": values})
		if err == nil {
			_, err = maps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	wanted, before := map[string]any{}, map[string]any{}
	for key, value := range values {
		wanted[key], before[key] = value, nil
		if value, ok := config.Data[key]; ok {
			before[key] = value
		}
	}
	if err := write(t.Context(), wanted); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := write(context.Background(), before); err != nil {
			t.Errorf("restoring %s: %v", name, err)
		}
	})
}

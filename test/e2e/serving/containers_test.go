package serving

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// relayed is where the application hands on what a URL answers to it.
func relayed(service, to string) string { return service + "/relay?to=" + url.QueryEscape(to) }

// TestSidecar covers a Pod of two containers: one takes the requests, the other is reached by it, and both see the same
// emptyDir and environment (serving 7.2).
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
		t.Errorf("what the sidecar wrote reads %q", got)
	}
	revision := s.revision(t, service)
	if got := revision.Status.ContainerStatuses; len(got) != 2 || got[0].Name != "main" || got[1].Name != "side" || !strings.Contains(got[1].ImageDigest, "@sha256:") {
		t.Errorf("status.containerStatuses is %+v", got)
	}
	pod := s.untilPods(t, revision.Name, 1)[0].Name
	s.print(t, revision.Name, "marker")
	until(t, "the log tells whose line it is", func() error {
		if log := s.log(t, revision.Name, ""); !strings.Contains(log, fmt.Sprintf("[%s main] ", pod)) || !strings.Contains(log, "marker") {
			return fmt.Errorf("it is %q", log)
		}
		return nil
	})
}

// TestInitContainer turns the feature on, and has a container run to its end before the others (config-features).
func TestInitContainer(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "init", nil)
	s.enable(t, "kubernetes.podspec-init-containers")
	service := s.app("hello", pod(func(spec *corev1.PodSpec) {
		spec.InitContainers = []corev1.Container{{Name: "prepare", Image: s.image, Env: []corev1.EnvVar{{Name: "START_FAIL", Value: "0:prepared"}}}}
	}))
	// A replica may not have seen the setting yet.
	until(t, "init containers are allowed", func() error {
		_, err := s.Admin.Knative.ServingV1().Services(s.namespace).Create(t.Context(), service, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	})
	service = s.deploy(t, service)
	if got := s.get(t, service.Status.URL); got != "Hello World!\n" {
		t.Errorf("it answers %q", got)
	}
	revision := s.revision(t, service)
	if got := revision.Status.InitContainerStatuses; len(got) != 1 || got[0].Name != "prepare" || !strings.Contains(got[0].ImageDigest, "@sha256:") {
		t.Errorf("status.initContainerStatuses is %+v", got)
	}
	pod := s.untilPods(t, revision.Name, 1)[0]
	if got := pod.Status.InitContainerStatuses; len(got) != 1 || got[0].State.Terminated == nil || got[0].State.Terminated.ExitCode != 0 {
		t.Errorf("the init container is %+v", got)
	}
	if got, want := s.log(t, revision.Name, "container=prepare"), fmt.Sprintf("[%s] prepared\n", pod.Name); got != want {
		t.Errorf("its log is %q, want %q", got, want)
	}
}

// enable turns a feature of config-features on until the test ends.
func (s *space) enable(t *testing.T, feature string) {
	t.Helper()
	maps := s.Host.CoreV1().ConfigMaps(harness.SystemNamespace)
	features, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "config-features"}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		features, err = maps.Get(t.Context(), "config-features", metav1.GetOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
	set := func(ctx context.Context, value any) error {
		patch, err := json.Marshal(map[string]any{"data": map[string]any{feature: value}})
		if err == nil {
			_, err = maps.Patch(ctx, features.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}
	if err := set(t.Context(), "enabled"); err != nil {
		t.Fatal(err)
	}
	var before any
	if value, ok := features.Data[feature]; ok {
		before = value
	}
	t.Cleanup(func() {
		if err := set(context.Background(), before); err != nil {
			t.Errorf("turning %s off again: %v", feature, err)
		}
	})
}

package failures

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// keepAsking sends requests to a Service until stop is called, which fails the test if a response was not want.
func (s *space) keepAsking(service *servingv1.Service, want string) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(s.Context())
	client := node.HTTPClient(patience)
	done := make(chan error, 1)
	n := 0
	go func() {
		defer close(done)
		defer client.CloseIdleConnections()
		ticker := time.NewTicker(50 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
			if err := expect(ctx, client, service.Status.URL, want); err != nil && ctx.Err() == nil {
				done <- err
				return
			}
			n++
		}
	}()
	return func() {
		s.Helper()
		cancel()
		if err := <-done; err != nil || n == 0 {
			s.Errorf("after %d answers: %v", n, err)
		}
	}
}

// TestBadRevision checks that the good Revision serves while later ones fail, until one is good again (serving 7.2-7).
func TestBadRevision(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	s.create("app", withEnv("TARGET", "one"))
	service := s.ready("app")
	s.answers(service, "Hello one!")
	stop := s.keepAsking(service, "Hello one!")
	for _, bad := range []struct {
		change change
		want   failure
	}{
		{withImage(node.Registry + "/missing:v1"), failure{healthy, "ContainerMissing", []string{"Unable to fetch image"}}},
		{withEnv("START_FAIL", "4:no luck"), failure{healthy, "ExitCode4", []string{"no luck (exit code 4)"}}},
	} {
		s.update("app", bad.change)
		failed := s.fails("app", bad.want)
		t.Logf("reported after %v", time.Since(s.began))
		if got := failed.Status.LatestReadyRevisionName; got != service.Status.LatestReadyRevisionName {
			t.Errorf("latest ready Revision %q, want %q", got, service.Status.LatestReadyRevisionName)
		}
		if c := condition(failed, &failed.Status.Status, servingv1.ServiceConditionRoutesReady); c.Status != corev1.ConditionTrue {
			t.Errorf("RoutesReady is %s", describe(c))
		}
	}
	stop()
	s.update("app", withEnv("TARGET", "three"))
	s.answers(s.ready("app"), "Hello three!")
}

// TestMissingObjectCreated creates an object that a Revision refers to: the Revision becomes ready without a new one.
func TestMissingObjectCreated(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	s.create("app", container(func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "TARGET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "greeting"}, Key: "target",
		}}}}
	}))
	s.fails("app", failure{resources, "CreateContainerConfigError", []string{`secret "greeting" not found`}})
	_, err := node.Host.CoreV1().Secrets(s.name).Create(t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "greeting"}, StringData: map[string]string{"target": "Secret"},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.began = time.Now()
	s.answers(s.ready("app"), "Hello Secret!")
}

// TestCrashWhileItServes covers an application that crashes later: one crash causes only a restart, the second is reported, and
// the report is removed once it serves again.
func TestCrashWhileItServes(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	// While the ConfigMap exists, the container fails at each start like in the second crash, so that the report stays.
	const failing, key = "failing", "start"
	s.create("app", container(func(c *corev1.Container) {
		c.Env = []corev1.EnvVar{{Name: "START_FAIL", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: failing}, Key: key, Optional: ptr.To(true),
		}}}}
	}), func(template *servingv1.RevisionTemplateSpec) {
		template.Annotations = map[string]string{"autoscaling.knative.dev/min-scale": "1"}
	})
	service := s.ready("app")
	client := node.HTTPClient(patience)
	defer client.CloseIdleConnections()
	crash := func() {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, service.Status.URL+"/crash?code=7&message=out+of+luck", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusBadGateway {
			t.Errorf("a request that crashes the application: status %d", response.StatusCode)
		}
	}
	crash()
	s.restarted(1)
	s.answers(service, "Hello World!")
	if ready := condition(s.get("app"), &s.get("app").Status.Status, "Ready"); ready.Status != corev1.ConditionTrue {
		t.Errorf("after one crash Ready is %s", describe(ready))
	}
	configMaps := node.Host.CoreV1().ConfigMaps(s.name)
	if _, err := configMaps.Create(t.Context(), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: failing}, Data: map[string]string{key: "7:out of luck"},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	crash()
	s.began = time.Now()
	s.fails("app", failure{healthy, "ExitCode7", []string{"Container failed with: out of luck (exit code 7)"}})
	t.Logf("reported after %v", time.Since(s.began))
	if err := configMaps.Delete(t.Context(), failing, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.began = time.Now()
	s.answers(s.ready("app"), "Hello World!")
}

func (s *space) get(name string) *servingv1.Service {
	s.Helper()
	service, err := s.services().Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return service
}

// restarted waits until the container of the only Pod has been restarted n times.
func (s *space) restarted(n int32) {
	s.Helper()
	s.eventually("the container is started again", func(ctx context.Context) error {
		pods, err := node.Host.CoreV1().Pods(s.name).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range pods.Items {
			for _, status := range pods.Items[i].Status.ContainerStatuses {
				if status.RestartCount >= n && status.Ready {
					return nil
				}
			}
		}
		return errors.New("it is not")
	})
}

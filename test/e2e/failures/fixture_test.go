package failures

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// space is a namespace for one test.
type space struct {
	testing.TB
	name string
	// began is the time of the last apply.
	began time.Time
}

// newSpace creates a namespace with labels.
func newSpace(t testing.TB, labels map[string]string) *space {
	t.Helper()
	return &space{TB: t, name: node.AsCluster().Namespace(t, "failures", labels)}
}

func (s *space) serving() servingclient.ServingV1Interface { return node.Admin.Knative.ServingV1() }

func (s *space) services() servingclient.ServiceInterface { return s.serving().Services(s.name) }

// change modifies the template of the sample application.
type change func(template *servingv1.RevisionTemplateSpec)

// container is a change of the container.
func container(fn func(c *corev1.Container)) change {
	return func(template *servingv1.RevisionTemplateSpec) { fn(&template.Spec.Containers[0]) }
}

// withImage replaces the image.
func withImage(image string) change { return container(func(c *corev1.Container) { c.Image = image }) }

// withEnv adds a variable.
func withEnv(name, value string) change {
	return container(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) })
}

// newService returns a Service of the sample application.
func (s *space) newService(name string, changes ...change) *servingv1.Service {
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: s.name, Name: name}}
	service.Spec.Template.Spec.Containers = []corev1.Container{{Image: image}}
	for _, change := range changes {
		change(&service.Spec.Template)
	}
	return service
}

// create creates a Service that must be accepted.
func (s *space) create(name string, changes ...change) {
	s.Helper()
	s.began = time.Now()
	if _, err := s.services().Create(s.Context(), s.newService(name, changes...), metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
}

// update replaces the template of a Service.
func (s *space) update(name string, changes ...change) {
	s.Helper()
	harness.Edit(s, s.services(), name, func(service *servingv1.Service) {
		service.Spec.Template = s.newService(name, changes...).Spec.Template
		s.began = time.Now()
	})
}

// ready waits until a Service is ready, and returns it.
func (s *space) ready(name string) *servingv1.Service {
	s.Helper()
	return s.until(name, patience, func(service *servingv1.Service) error {
		ready := condition(service, &service.Status.Status, duckv1.ConditionReady)
		if ready.Status != corev1.ConditionTrue {
			return fmt.Errorf("Ready is %s", describe(ready))
		}
		return nil
	})
}

// reports is like until with a timeout of prompt, since the Pods of the Service have begun to start if that is later.
func (s *space) reports(name string, check func(*servingv1.Service) error) *servingv1.Service {
	s.Helper()
	service := s.until(name, patience, check)
	reported := time.Now()
	since := s.began
	pods, err := node.Host.CoreV1().Pods(s.name).List(s.Context(), metav1.ListOptions{LabelSelector: servingv1.ServiceLabelKey + "=" + name})
	if err != nil {
		s.Fatal(err)
	}
	for i := range pods.Items {
		if begun := begun(&pods.Items[i]); begun.After(since) {
			since = begun
		}
	}
	// Times of the host are in whole seconds.
	limit := prompt
	if os.Getenv("MEASURE_AFTER") != "" {
		limit = 3 * prompt // other tests run beside it
	}
	if took := reported.Sub(since); took > limit {
		s.Errorf("reported after %v, and %v after the Pods have begun to start", time.Since(s.began).Round(time.Millisecond), took.Round(time.Second))
	}
	return service
}

// begun returns when the first containers of a Pod were started, or the last step before, if any.
func begun(pod *corev1.Pod) (at time.Time) {
	later := func(t *metav1.Time) {
		if t != nil && t.After(at) {
			at = t.Time
		}
	}
	later(pod.Status.StartTime)
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Status == corev1.ConditionTrue && c.Type != corev1.PodReady && c.Type != corev1.ContainersReady {
			later(&c.LastTransitionTime)
		}
	}
	for i := range pod.Status.ContainerStatuses {
		if c := &pod.Status.ContainerStatuses[i]; c.RestartCount == 0 && c.State.Running != nil {
			later(&c.State.Running.StartedAt)
		}
	}
	return at
}

// until watches a Service until check returns nil, with a timeout since it was applied.
func (s *space) until(name string, limit time.Duration, check func(*servingv1.Service) error) *servingv1.Service {
	s.Helper()
	ctx, cancel := context.WithDeadline(s.Context(), s.began.Add(limit))
	defer cancel()
	selector := fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
	watcher := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return s.services().List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return s.services().Watch(ctx, options)
		},
	}
	wrong := fmt.Errorf("Service %q does not exist", name)
	event, err := watchtools.UntilWithSync(ctx, watcher, &servingv1.Service{}, nil, func(event watch.Event) (bool, error) {
		if service, ok := event.Object.(*servingv1.Service); ok {
			wrong = check(service)
		}
		return wrong == nil, nil
	})
	if err != nil {
		s.Fatalf("after %v: %v", time.Since(s.began).Round(time.Millisecond), wrong)
	}
	return event.Object.(*servingv1.Service)
}

// answers waits until a Service responds with a body.
func (s *space) answers(service *servingv1.Service, want string) {
	s.Helper()
	client := node.HTTPClient(patience)
	defer client.CloseIdleConnections()
	s.eventually(fmt.Sprintf("Service %s answers %q", service.Name, want), func(ctx context.Context) error {
		return expect(ctx, client, service.Status.URL, want)
	})
}

// eventually calls probe until it succeeds, and fails the test with its last error after a timeout.
func (s *space) eventually(what string, probe func(context.Context) error) {
	s.Helper()
	harness.EventuallyWithin(s, patience, what, probe)
}

// expect sends one request.
func expect(ctx context.Context, client *http.Client, url, want string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || strings.TrimSpace(string(body)) != want {
		return fmt.Errorf("GET %s: status %d, body %.200q; want %q", url, response.StatusCode, body, want)
	}
	return nil
}

// condition returns a condition of an object's current generation.
func condition(object metav1.Object, status *duckv1.Status, t duckv1.ConditionType) duckv1.Condition {
	if c := status.Conditions.Get(t); c != nil && status.ObservedGeneration == object.GetGeneration() {
		return *c
	}
	return duckv1.Condition{Type: t, Status: corev1.ConditionUnknown, Reason: "NotObserved"}
}

func describe(c duckv1.Condition) string {
	return strings.TrimSpace(fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message))
}

// isFalse returns an error unless a condition is False with a reason and a message that contains all parts.
func isFalse(c duckv1.Condition, reason string, parts ...string) error {
	says := func(part string) bool { return strings.Contains(c.Message, part) }
	if c.Status != corev1.ConditionFalse || c.Reason != reason || !all(parts, says) {
		return fmt.Errorf("%s is %q, want False %s with %q", c.Type, describe(c), reason, parts)
	}
	return nil
}

func all(parts []string, fn func(string) bool) bool {
	return !slices.ContainsFunc(parts, func(part string) bool { return !fn(part) })
}

// refused waits until the server rejects a Service, with a message that contains all parts. It retries, because a slow dry run
// of the Pod only causes a warning.
func (s *space) refused(service *servingv1.Service, parts ...string) {
	s.Helper()
	harness.Eventually(s, "Service "+service.Name+" is refused", func() error {
		_, err := s.services().Create(s.Context(), service, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil {
			return errors.New("it is accepted")
		}
		if !apierrors.IsInvalid(err) || !all(parts, func(part string) bool { return strings.Contains(err.Error(), part) }) {
			return fmt.Errorf("creating it: %w; want it invalid, with %q", err, parts)
		}
		return nil
	})
}

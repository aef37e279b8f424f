package serving

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// getter is the part of a typed client that reads one object.
type getter[O any] interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (O, error)
}

// read returns an object that must exist.
func read[O any](t testing.TB, client getter[O], name string) O {
	t.Helper()
	object, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object
}

// patience is the timeout of every wait. Machines are slow while many Pods start; a passing test never waits that long.
const patience = 3 * time.Minute

// until calls probe until it succeeds, and fails the test with its last error after a timeout.
func until(t testing.TB, what string, probe func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := harness.Poll(ctx, probe); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

// eventually waits until check accepts an object, and returns it.
func eventually[O any](t testing.TB, client getter[O], name, what string, check func(O) error) O {
	t.Helper()
	var object O
	until(t, fmt.Sprintf("%T %s %s", object, name, what), func() (err error) {
		if object, err = client.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
		return check(object)
	})
	return object
}

// deleted waits until the object with a name does not exist.
func deleted[O any](t testing.TB, client getter[O], name string) {
	t.Helper()
	var object O
	until(t, fmt.Sprintf("%T %s is deleted", object, name), func() error {
		_, err := client.Get(t.Context(), name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
}

// condition returns an error if a status lacks the wanted condition; the status must be of the current generation.
func condition(object metav1.Object, status *duckv1.Status, t duckv1.ConditionType, want corev1.ConditionStatus, reason string) error {
	if status.ObservedGeneration != object.GetGeneration() {
		return fmt.Errorf("generation %d, observedGeneration %d", object.GetGeneration(), status.ObservedGeneration)
	}
	c := status.Conditions.Get(t)
	if c == nil || c.Status != want || c.Reason != reason {
		return fmt.Errorf("want %s %s with reason %q, conditions are %+v", t, want, reason, status.Conditions)
	}
	return nil
}

// option changes a Service that a test applies.
type option func(*servingv1.Service)

// app returns a Service that runs the sample application.
func (s *space) app(name string, options ...option) *servingv1.Service {
	service := &servingv1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: servingv1.SchemeGroupVersion.String(), Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.namespace, Name: name},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Image: s.image}}}},
		}}},
	}
	for _, o := range options {
		o(service)
	}
	return service
}

// pod changes the template's PodSpec.
func pod(change func(*corev1.PodSpec)) option {
	return func(s *servingv1.Service) { change(&s.Spec.Template.Spec.PodSpec) }
}

// container changes the first container.
func container(change func(*corev1.Container)) option {
	return pod(func(spec *corev1.PodSpec) { change(&spec.Containers[0]) })
}

// env sets an environment variable of the first container.
func env(name, value string) option {
	return container(func(c *corev1.Container) { c.Env = append(c.Env, corev1.EnvVar{Name: name, Value: value}) })
}

// scaling sets an annotation of the autoscaler.
func scaling(key, value string) option {
	return func(s *servingv1.Service) {
		metav1.SetMetaDataAnnotation(&s.Spec.Template.ObjectMeta, servingv1.AutoscalingGroupName+"/"+key, value)
	}
}

// instances fixes the number of instances.
func instances(n string) option {
	return func(s *servingv1.Service) {
		scaling("min-scale", n)(s)
		scaling("max-scale", n)(s)
	}
}

// concurrency sets the template's containerConcurrency.
func concurrency(n int64) option {
	return func(s *servingv1.Service) { s.Spec.Template.Spec.ContainerConcurrency = ptr.To(n) }
}

// revisionName names the template's Revision, after the Service's name and a dash.
func revisionName(suffix string) option {
	return func(s *servingv1.Service) { s.Spec.Template.Name = s.Name + "-" + suffix }
}

// traffic sets the distribution of requests.
func traffic(targets ...servingv1.TrafficTarget) option {
	return func(s *servingv1.Service) { s.Spec.Traffic = targets }
}

// pinned returns a traffic target of a Revision by its name.
func pinned(revision string, percent int64) servingv1.TrafficTarget {
	return servingv1.TrafficTarget{RevisionName: revision, LatestRevision: ptr.To(false), Percent: &percent}
}

// tagged returns a traffic target with a tag.
func tagged(tag string, target servingv1.TrafficTarget) servingv1.TrafficTarget {
	target.Tag = tag
	return target
}

// h2c makes the gateway use HTTP/2 to the application.
func h2c(s *servingv1.Service) {
	container(func(c *corev1.Container) { c.Ports = []corev1.ContainerPort{{Name: "h2c", ContainerPort: 8080}} })(s)
	env("PROTOCOL", "h2c")(s)
}

// infoReport is the response of /info of the application, as far as tests use it.
type infoReport struct {
	Env map[string]string `json:"env"`
}

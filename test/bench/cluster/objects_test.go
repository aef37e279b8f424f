package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/creation"
)

// service is a Service that runs the sample application.
func service(name string, annotations map[string]string) *servingv1.Service {
	return &servingv1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: servingv1.ServiceSpec{ConfigurationSpec: servingv1.ConfigurationSpec{Template: servingv1.RevisionTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Annotations: annotations},
			// Pods that terminate slowly delay the deletion of the namespace.
			Spec: servingv1.RevisionSpec{TimeoutSeconds: ptr.To[int64](10), PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Image: image}}}},
		}}},
	}
}

// deployment is a bare Deployment of the same application. Without a probe its Pods are Ready as soon as possible.
func deployment(name string, replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To(replicas),
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{EnableServiceLinks: ptr.To(false), Containers: []corev1.Container{{
					Name: "app", Image: image,
					Env:   []corev1.EnvVar{{Name: "PORT", Value: "8080"}},
					Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
				}}},
			},
		},
	}
}

func serviceReady(s *servingv1.Service) bool {
	return creation.Ready(s) && s.Status.ObservedGeneration == s.Generation
}

func podReady(p *corev1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func deploymentReady(d *appsv1.Deployment) bool {
	return d.Status.ObservedGeneration == d.Generation && d.Status.ReadyReplicas > 0 && d.Status.ReadyReplicas == *d.Spec.Replicas
}

// awaitEach reads a watch until done accepts that many objects of different names.
func awaitEach[T interface{ GetName() string }](b *testing.B, w watch.Interface, n int, done func(T) bool) {
	b.Helper()
	names := map[string]bool{}
	timeout := time.After(patience)
	for len(names) < n {
		select {
		case event, open := <-w.ResultChan():
			if !open {
				b.Fatalf("the watch ended when %d of %d were ready", len(names), n)
			}
			if object, ok := event.Object.(T); ok && done(object) {
				names[object.GetName()] = true
			}
		case <-timeout:
			b.Fatalf("%d of %d are ready after %s", len(names), n, patience)
		}
	}
}

// scale scales a Deployment to one Pod.
func scale(ctx context.Context, namespace, name string) error {
	_, err := node.Host.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, []byte(`{"spec":{"replicas":1}}`), metav1.PatchOptions{})
	return err
}

// awaitNoPods waits until a namespace has no Pod.
func awaitNoPods(b *testing.B, namespace string) {
	b.Helper()
	await(b, "no Pods remain", func() error {
		pods, err := node.Host.CoreV1().Pods(namespace).List(b.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("there are %d", len(pods.Items))
		}
		return nil
	})
}

// host returns the host name of a Service's URL.
func host(s *servingv1.Service) string { return strings.TrimPrefix(s.Status.URL, "http://") }

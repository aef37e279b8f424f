package failures

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

const notOwned = "NotOwned"

// says waits until a Service has two conditions that are False with one reason: Ready and one that it depends on.
func (s *space) says(name string, t duckv1.ConditionType, reason string, parts ...string) {
	s.Helper()
	s.reports(name, func(service *servingv1.Service) error {
		if err := isFalse(condition(service, &service.Status.Status, t), reason, parts...); err != nil {
			return err
		}
		return isFalse(condition(service, &service.Status.Status, duckv1.ConditionReady), reason, parts...)
	})
	s.Logf("reported after %v", time.Since(s.began))
}

func named(name string) change {
	return func(template *servingv1.RevisionTemplateSpec) { template.Name = name }
}

// TestRevisionNameConflict checks templates with the name of another Service's Revision, and of an own Revision with other
// content.
func TestRevisionNameConflict(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	s.create("cart-next")
	s.ready("cart-next")
	s.create("cart", named("cart-next-00001"))
	s.says("cart", servingv1.ServiceConditionConfigurationsReady, "RevisionNameTaken", `existing Revision "cart-next-00001" that we do not own`)
	configuration, err := s.serving().Configurations(s.name).Get(t.Context(), "cart", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := isFalse(condition(configuration, &configuration.Status.Status, duckv1.ConditionReady), "RevisionNameTaken", "cart-next-00001"); err != nil {
		t.Errorf("Configuration: %v", err)
	}

	s.update("cart", named("cart-one"), withEnv("TARGET", "one"))
	s.answers(s.ready("cart"), "Hello one!")
	s.update("cart", named("cart-two"), withEnv("TARGET", "two"))
	s.answers(s.ready("cart"), "Hello two!")
	s.update("cart", named("cart-one"), withEnv("TARGET", "three"))
	s.says("cart", servingv1.ServiceConditionConfigurationsReady, "RevisionNameTaken", `existing Revision "cart-one" of an earlier template`)
	s.answers(s.get("cart"), "Hello two!")
	s.update("cart", named("cart-three"), withEnv("TARGET", "three"))
	s.answers(s.ready("cart"), "Hello three!")
}

// TestCoreServiceConflict checks that another object of the cluster has the name of a Route's core Service.
func TestCoreServiceConflict(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	theirs := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "app"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}
	theirs, err := node.Host.CoreV1().Services(s.name).Create(t.Context(), theirs, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.create("app")
	s.says("app", servingv1.ServiceConditionRoutesReady, notOwned, "core Service", `app" already`, "does not belong to the Route")
	route, err := s.serving().Routes(s.name).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := isFalse(condition(route, &route.Status.Status, servingv1.RouteConditionIngressReady), notOwned, "does not belong to the Route"); err != nil {
		t.Errorf("Route: %v", err)
	}
	left, err := node.Host.CoreV1().Services(s.name).Get(t.Context(), "app", metav1.GetOptions{})
	if err != nil || left.UID != theirs.UID || left.Spec.Type != corev1.ServiceTypeClusterIP || len(left.OwnerReferences) > 0 {
		t.Errorf("the conflicting Service is %v (%v), want it unchanged", left, err)
	}
	if err := node.Host.CoreV1().Services(s.name).Delete(t.Context(), "app", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.began = time.Now()
	s.answers(s.ready("app"), "Hello World!")
}

// TestDeploymentConflict checks that another object of the cluster has the name of a Revision's Deployment.
func TestDeploymentConflict(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	labels := map[string]string{"app": "theirs"}
	deployments := node.Host.AppsV1().Deployments(s.name)
	pod := s.aPod(nil)
	pod.Spec.Containers[0].Name = "app"
	_, err := deployments.Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "app-00001-deployment"},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0), Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod.Spec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.create("app")
	s.fails("app", failure{resources, notOwned, []string{`existing Deployment "app-00001-deployment" that does not belong to the Revision`}})
	t.Logf("reported after %v", time.Since(s.began))
	if err := deployments.Delete(t.Context(), "app-00001-deployment", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.began = time.Now()
	s.answers(s.ready("app"), "Hello World!")
}

// TestChildrenConflict checks that a user's own Configuration or Route has the name of a Service (serving 7.0.1-3).
func TestChildrenConflict(t *testing.T) {
	t.Parallel()
	s := newSpace(t, nil)
	configuration := &servingv1.Configuration{ObjectMeta: metav1.ObjectMeta{Name: "one"}}
	configuration.Spec.Template = s.newService("one").Spec.Template
	if _, err := s.serving().Configurations(s.name).Create(t.Context(), configuration, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.create("one")
	s.says("one", servingv1.ServiceConditionConfigurationsReady, notOwned, `existing Configuration "one" that we do not own`)

	route := &servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: "two"}}
	route.Spec.Traffic = []servingv1.TrafficTarget{{ConfigurationName: "one", Percent: ptr.To[int64](100)}}
	if _, err := s.serving().Routes(s.name).Create(t.Context(), route, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.create("two")
	s.says("two", servingv1.ServiceConditionRoutesReady, notOwned, `existing Route "two" that we do not own`)
}

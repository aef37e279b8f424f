package serving

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestDeploymentSettings covers the keys of config-deployment that affect Pods and conditions: runtime-class-name,
// default-affinity-type, pod-is-always-schedulable and progress-deadline. Existing Revisions keep their values, and a template
// takes precedence. The node's containerd has the handler of one RuntimeClass, whose Pod runs, and lacks the handler of the
// other, which its Revision reports.
//
// It does not run in parallel: a progress deadline of five seconds would fail Revisions of other tests.
func TestDeploymentSettings(t *testing.T) {
	s := newSpace(t, "deployment", nil)
	runs, fails := s.runtimeClass(t, "runs", "runc"), s.runtimeClass(t, "fails", "missing")
	// The template's deadline differs from the settings' and from the default, and a slow Pod does not exceed it.
	const deadline = 9 * time.Minute
	slow := func(s *servingv1.Service) {
		metav1.SetMetaDataAnnotation(&s.Spec.Template.ObjectMeta, servingv1.ProgressDeadlineAnnotationKey, deadline.String())
	}
	// sandbox selects a RuntimeClass.
	sandbox := func(value string) option {
		return func(s *servingv1.Service) { s.Spec.Template.Labels = map[string]string{"sandbox": value} }
	}
	s.deploy(t, s.app("hello", revisionName("before")))
	before := s.deployment(t, "hello-before")
	s.set(t, "config-deployment", map[string]string{
		"runtime-class-name":        fmt.Sprintf("%s: {selector: {sandbox: runs}}\n%s: {selector: {sandbox: fails}}", runs, fails),
		"default-affinity-type":     "none",
		"pod-is-always-schedulable": "true",
		"progress-deadline":         "5s",
	})
	var after *appsv1.Deployment
	made := 0
	// The leader may not have observed the settings yet.
	until(t, "a new Revision has the runtime class", func() error {
		made++
		name := fmt.Sprintf("after-%d", made)
		s.apply(t, s.app("hello", revisionName(name), sandbox("runs"), slow))
		after = s.deployment(t, "hello-"+name)
		if got := after.Spec.Template.Spec.RuntimeClassName; got == nil {
			return errors.New("it has none")
		}
		return nil
	})
	// After the deadline, the Pod of a Revision that no Route refers to stays for its window.
	s.apply(t, s.app("large", revisionName("one"), instances("1"), scaling("window", "10m"), container(func(c *corev1.Container) {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1000")}
	})))
	s.apply(t, s.app("sandbox", revisionName("one"), sandbox("fails"), slow))

	if got := before.Spec.Template.Spec; got.RuntimeClassName != nil || got.Affinity == nil || got.Affinity.PodAntiAffinity == nil {
		t.Errorf("by default a Revision has the runtime class %q and the affinity %+v, want Pods to prefer nodes without another one",
			ptr.Deref(got.RuntimeClassName, ""), got.Affinity)
	}
	if got := after.Spec; ptr.Deref(got.ProgressDeadlineSeconds, 0) != int32(deadline.Seconds()) || got.Template.Spec.Affinity != nil {
		t.Errorf("with the settings a Revision has the deadline %d and the affinity %+v, want the template's and none",
			ptr.Deref(got.ProgressDeadlineSeconds, 0), got.Template.Spec.Affinity)
	}
	service := s.ready(t, "hello")
	if got := s.get(t, service.Status.URL); got != "Hello World!\n" {
		t.Errorf("it answers %q", got)
	}
	if got := s.untilPods(t, service.Status.LatestReadyRevisionName, 1)[0].Spec.RuntimeClassName; ptr.Deref(got, "") != runs {
		t.Errorf("the Pod has the runtime class %q, want %q", ptr.Deref(got, ""), runs)
	}
	if got := s.deployment(t, "hello-before"); got.UID != before.UID || got.Spec.Template.Spec.Affinity == nil {
		t.Errorf("the Deployment of the previous Revision has changed to %+v", got.Spec)
	}

	until(t, "no node has room for a Pod", func() error {
		pods, err := s.pods(t.Context(), "large-one")
		if err != nil || len(pods) != 1 {
			return fmt.Errorf("got %d Pods, %w", len(pods), err)
		}
		for _, c := range pods[0].Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
				return nil
			}
		}
		return fmt.Errorf("its conditions are %+v", pods[0].Status.Conditions)
	})
	s.lacks(t, "large-one", "ProgressDeadlineExceeded", "did not become ready within 5s")
	s.lacks(t, "sandbox-one", "FailedCreatePodSandBox", `"missing"`)
}

// runtimeClass creates a RuntimeClass for the test, and returns its name.
func (s *space) runtimeClass(t *testing.T, name, handler string) string {
	t.Helper()
	classes := s.Host.NodeV1().RuntimeClasses()
	class, err := classes.Create(t.Context(), &nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: s.namespace + "-" + name}, Handler: handler}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := classes.Delete(context.Background(), class.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return class.Name
}

// deployment waits until a Revision has a Deployment, and returns it.
func (s *space) deployment(t *testing.T, revision string) (deployment *appsv1.Deployment) {
	t.Helper()
	until(t, "Revision "+revision+" has a Deployment", func() (err error) {
		deployment, err = s.Host.AppsV1().Deployments(s.namespace).Get(t.Context(), revision+"-deployment", metav1.GetOptions{})
		return err
	})
	return deployment
}

// lacks waits until a Revision reports unavailable resources with a reason and a message that contains a part.
func (s *space) lacks(t *testing.T, revision, reason, part string) {
	t.Helper()
	const available = servingv1.RevisionConditionResourcesAvailable
	eventually(t, s.Admin.Knative.ServingV1().Revisions(s.namespace), revision, "fails with "+reason, func(r *servingv1.Revision) error {
		err := condition(r, &r.Status.Status, available, corev1.ConditionFalse, reason)
		if err == nil && !strings.Contains(r.Status.Conditions.Get(available).Message, part) {
			err = fmt.Errorf("the message is %q, without %q", r.Status.Conditions.Get(available).Message, part)
		}
		return err
	})
}

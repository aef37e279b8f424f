package route

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// TestNew checks that the controller observes the dependencies of a Route: its Configuration, its Revisions, and
// the deletion of the Route itself, also while the controller did not run (serving 7.4).
func TestNew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		isReady := ready(corev1.ConditionTrue, "")
		orphan := newRevision("old", 1, isReady)
		orphan.Labels[servingv1.RoutingStateLabelKey] = servingv1.RoutingStateActive
		orphan.Annotations = map[string]string{servingv1.RoutesAnnotationKey: "gone"}
		client := fake.NewSimpleClientset(newRoute("hello", follow("hello", 100)), newConfiguration("hello", ""), newRevision("hello", 1, isReady), orphan)
		informers := externalversions.NewSharedInformerFactory(client, 0)
		current := settings.Default("example.com")
		r := &Reconciler{
			Client: client.ServingV1(), Gateway: &fakeGateway{routes: map[routing.Key]*routing.Route{}}, URLs: URLs{ClusterDomain: "cluster.local"},
			Recorder: record.NewFakeRecorder(100), Clock: clock.RealClock{}, Settings: func() *settings.Settings { return &current },
			Claims: &hostnames.Claims{},
		}
		controller, err := r.Controller(informers.Serving().V1())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		informers.Start(ctx.Done())
		done := make(chan struct{})
		go func() {
			defer close(done)
			controller.Run(ctx, 2)
		}()
		t.Cleanup(func() {
			cancel()
			<-done
			informers.Shutdown()
		})
		eventually := func(what string, met func(ctx context.Context) (bool, error)) {
			t.Helper()
			if err := wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, 20*time.Second, true, met); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		readyIs := func(status corev1.ConditionStatus) func(ctx context.Context) (bool, error) {
			return func(ctx context.Context) (bool, error) {
				route, err := client.ServingV1().Routes("default").Get(ctx, "hello", metav1.GetOptions{})
				if err != nil {
					return false, err
				}
				c := route.Status.Conditions.Get(duckv1.ConditionReady)
				return c != nil && c.Status == status, nil
			}
		}
		stateIs := func(name, state string) func(ctx context.Context) (bool, error) {
			return func(ctx context.Context) (bool, error) {
				revision, err := client.ServingV1().Revisions("default").Get(ctx, name, metav1.GetOptions{})
				return err == nil && revision.Labels[servingv1.RoutingStateLabelKey] == state, err
			}
		}
		eventually("a Revision of a Route that was deleted before is in reserve", stateIs("old-1", servingv1.RoutingStateReserve))
		eventually("a Route waits for its Configuration", readyIs(corev1.ConditionUnknown))
		if _, err := client.ServingV1().Configurations("default").Update(ctx, newConfiguration("hello", "hello-1", isReady), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually("a Route is ready when its Configuration is", readyIs(corev1.ConditionTrue))
		eventually("the Revision is active", stateIs("hello-1", servingv1.RoutingStateActive))
		if err := client.ServingV1().Revisions("default").Delete(ctx, "hello-1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually("a Route whose Revision is deleted reports it", readyIs(corev1.ConditionFalse))
	})
}

package serving

import (
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// gatewayPort is the port of a replica's gateway for external requests.
const gatewayPort = "8080"

// TestReadyAtEveryReplica checks that a ready Route is served by the gateway of each replica, independent of the replica that
// wrote the status: many Routes are created at once, and then all are changed (serving 7.4, 8-1).
func TestReadyAtEveryReplica(t *testing.T) {
	t.Parallel()
	s := newSpace(t, "everywhere", nil)
	s.deploy(t, s.app("hello", revisionName("one"), env("TARGET", "one"), instances("1")))
	s.deploy(t, s.app("hello", revisionName("two"), env("TARGET", "two"), instances("1"), traffic(pinned("hello-one", 50), pinned("hello-two", 50))))
	pods, err := s.GatewayPods(t.Context())
	if err != nil || len(pods) == 0 {
		t.Fatalf("the gateways are %d, %v", len(pods), err)
	}
	gateways := map[string]*http.Client{}
	for i := range pods {
		gateways[pods[i].Name] = toward(t, net.JoinHostPort(pods[i].Status.PodIP, gatewayPort))
	}
	const many = 30
	routes := s.Admin.Knative.ServingV1().Routes(s.namespace)
	changes, err := routes.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	var at [many]*servingv1.Route
	for _, revision := range []string{"one", "two"} {
		for i := range at {
			if at[i] == nil {
				at[i], err = routes.Create(t.Context(), &servingv1.Route{
					ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("route-", i)},
					Spec:       servingv1.RouteSpec{Traffic: []servingv1.TrafficTarget{pinned("hello-"+revision, 100)}},
				}, metav1.CreateOptions{})
			} else {
				patch := fmt.Appendf(nil, `{"spec": {"traffic": [{"revisionName": "hello-%s", "percent": 100}]}}`, revision)
				at[i], err = routes.Patch(t.Context(), at[i].Name, "application/merge-patch+json", patch, metav1.PatchOptions{})
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		want := fmt.Sprintf("Hello %s!\n", revision)
		left := map[string]int64{}
		for _, route := range at {
			left[route.Name] = route.Generation
		}
		var asking sync.WaitGroup
		for len(left) > 0 {
			event, open := <-changes.ResultChan()
			if !open {
				t.Fatalf("the watch ended before all Routes were ready: %v are not", left)
			}
			route, ok := event.Object.(*servingv1.Route)
			if !ok || event.Type == watch.Deleted || left[route.Name] != route.Status.ObservedGeneration ||
				condition(route, &route.Status.Status, duckv1.ConditionReady, corev1.ConditionTrue, "") != nil {
				continue
			}
			delete(left, route.Name)
			for replica, client := range gateways {
				asking.Go(func() {
					a, err := ask(t.Context(), client, http.MethodGet, route.Status.URL, nil, nil)
					if err != nil || a.code != http.StatusOK || a.body != want {
						t.Errorf("%s answers a request to %s, which is ready, with %+v, %v, want %q", replica, route.Name, a, err, want)
					}
				})
			}
		}
		asking.Wait()
	}
}

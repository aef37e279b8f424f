package serving

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// BenchmarkInstalled measures requests per second to a Pod on a cluster: through the gateway of the installation, and directly.
func BenchmarkInstalled(b *testing.B) {
	node := harness.NodeFor(b)
	figures.Once(b, func() {
		image, err := node.AppImage()
		if err != nil {
			b.Fatal(err)
		}
		space := node.NewSpace(b, "bench")
		space.Apply(b, fmt.Sprintf(`
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: pod}
spec:
  template:
    metadata: {annotations: {autoscaling.knative.dev/min-scale: "1", autoscaling.knative.dev/max-scale: "1"}}
    spec: {timeoutSeconds: 10, containers: [{image: %q, ports: [{containerPort: 8080}]}]}`, image))
		space.Ready(b, "service/pod")
		pods, err := node.Host.CoreV1().Pods(space.Name).List(b.Context(), metav1.ListOptions{LabelSelector: "serving.knative.dev/service=pod"})
		if err != nil {
			b.Fatal(err)
		}
		if len(pods.Items) != 1 {
			b.Fatalf("the Service has %d Pods, want 1", len(pods.Items))
		}
		host := "pod." + space.Name + ".example.com"
		c := &contenders{
			addresses: map[string]string{"direct": "http://" + pods.Items[0].Status.PodIP + ":8080", "gateway": "http://" + node.Gateway},
			loads:     map[string][]load{},
		}
		c.measure(func(address string) load { return runWrk(b, address, host, 64, wrkTime) })
		c.reportRates(b, "req/s")
	})
}

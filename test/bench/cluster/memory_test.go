package cluster

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// BenchmarkMemory measures what is resident of all Pods of the installation, without Services of its own and with a hundred
// that have no instance. What grows is not given back soon, so that the second figure is the most that the Services took.
func BenchmarkMemory(b *testing.B) {
	once(b, func() {
		many := short(100, 10)
		before := installed(b)
		inNamespace(b, func(namespace string) {
			// Fewer at a time: a node has Pods for a part of them only.
			const batch = 25
			for from := 0; from < many; from += batch {
				idle(b, namespace, from, min(from+batch, many))
			}
			after := installed(b)
			b.ReportMetric(before/1e6, "rss-MB")
			b.ReportMetric(after/1e6, fmt.Sprintf("rss-%d-Services-MB", many))
		})
	})
}

// idle creates Services and waits until none has an instance any more.
func idle(b *testing.B, namespace string, from, to int) {
	b.Helper()
	services := node.Admin.Knative.ServingV1().Services(namespace)
	w, err := services.Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	group, ctx := errgroup.WithContext(b.Context())
	for i := from; i < to; i++ {
		group.Go(func() error {
			_, err := services.Create(ctx, service(fmt.Sprintf("idle-%d", i), map[string]string{servingv1.WindowAnnotationKey: "6s"}), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	awaitEach(b, w, to-from, serviceReady)
	awaitNoPods(b, namespace)
}

// installed sums up the memory of all replicas, in bytes.
func installed(b *testing.B) float64 {
	b.Helper()
	pods, err := node.ServerPods(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	sum := 0.0
	for i := range pods {
		values, err := node.MetricsOf(b.Context(), &pods[i])
		if err != nil {
			b.Fatal(err)
		}
		sum += values["process_resident_memory_bytes"]
	}
	if sum == 0 {
		b.Fatal("no replica tells of its memory")
	}
	return sum
}

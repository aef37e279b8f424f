package cluster

import (
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// BenchmarkMemory measures the resident memory of all Pods of the installation, without Services and with a hundred at zero.
// Memory is released late, so the second value is the maximum that the Services used.
func BenchmarkMemory(b *testing.B) {
	once(b, func() {
		many := short(100, 10)
		before := installed(b)
		inNamespace(b, func(namespace string) {
			// In groups, because a node has room for a part of their Pods only.
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

// idle creates Services and waits until all are at zero.
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

// installed returns the memory of all replicas in bytes.
func installed(b *testing.B) float64 {
	b.Helper()
	pods, err := node.ReplicaPods(b.Context())
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
		b.Fatal("no replica reports its memory")
	}
	return sum
}

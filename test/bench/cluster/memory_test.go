package cluster

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// returnLimit is the time within which the memory of the Pods must be what it was before.
const returnLimit = 10 * time.Minute

// BenchmarkIdle measures the CPU time that a replica uses without requests and events, the largest of all.
func BenchmarkIdle(b *testing.B) {
	once(b, func() {
		window := time.Duration(short(60, 5)) * time.Second
		before, began := node.ReplicaMetric(b, "process_cpu_seconds_total"), time.Now()
		pass(b, window)
		after, took := node.ReplicaMetric(b, "process_cpu_seconds_total"), time.Since(began)
		most := 0.0
		for name := range before {
			most = max(most, after[name]-before[name])
		}
		b.ReportMetric(100*most/took.Seconds(), "replica-cpu-%")
	})
}

// BenchmarkMemory measures the resident memory of all Pods of the installation, without Services and with a hundred at zero, and the time after
// their deletion until it is again less than a fifth above the first. Memory is released late, so the second value is the maximum that the Services used.
func BenchmarkMemory(b *testing.B) {
	once(b, func() {
		many := short(100, 10)
		before := resident(b)
		inNamespace(b, func(namespace string) {
			// In groups, because a node has room for a part of their Pods only.
			const batch = 25
			for from := 0; from < many; from += batch {
				idle(b, namespace, from, min(from+batch, many))
			}
			after := resident(b)
			b.ReportMetric(before/1e6, "rss-MB")
			b.ReportMetric(after/1e6, fmt.Sprintf("rss-%d-Services-MB", many))
		})
		if testing.Short() {
			return
		}
		began := time.Now()
		for time.Since(began) < returnLimit && resident(b) > 1.2*before {
			pass(b, 5*time.Second)
		}
		b.ReportMetric(time.Since(began).Seconds(), "returned-after-s")
		b.ReportMetric(resident(b)/1e6, "rss-returned-MB")
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

// resident returns the memory of all Pods of the installation in bytes.
func resident(b *testing.B) (sum float64) {
	b.Helper()
	for _, bytes := range node.ReplicaMetric(b, "process_resident_memory_bytes") {
		sum += bytes
	}
	return sum
}

// pass waits.
func pass(b *testing.B, d time.Duration) {
	b.Helper()
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
}

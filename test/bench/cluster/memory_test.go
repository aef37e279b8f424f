package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// BenchmarkMemory measures the memory of all Pods of the installation, without Services of its own and with a hundred that
// have no instance, as the kubelet sees it: what is resident, and the working set, which has the files read lately as
// well. What grows is not given back soon, so that the second figure is the most that the Services took.
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
			b.ReportMetric(megabytes(before.RSS), "rss-MB")
			b.ReportMetric(megabytes(before.WorkingSet), "working-set-MB")
			b.ReportMetric(megabytes(after.RSS), fmt.Sprintf("rss-%d-Services-MB", many))
			b.ReportMetric(megabytes(after.WorkingSet), fmt.Sprintf("working-set-%d-Services-MB", many))
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

// memory is in bytes.
type memory struct{ RSS, WorkingSet uint64 }

// installed sums up the memory of the Pods in the system namespace.
func installed(b *testing.B) memory {
	b.Helper()
	nodes, err := node.Host.CoreV1().Nodes().List(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	var sum memory
	for i := range nodes.Items {
		m, err := statsOf(b.Context(), nodes.Items[i].Name)
		if err != nil {
			b.Fatal(err)
		}
		sum.RSS += m.RSS
		sum.WorkingSet += m.WorkingSet
	}
	if sum.RSS == 0 {
		b.Fatal("the kubelets know no memory of Pods in " + harness.SystemNamespace)
	}
	return sum
}

func statsOf(ctx context.Context, name string) (memory, error) {
	raw, err := node.Host.CoreV1().RESTClient().Get().Resource("nodes").Name(name).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
	if err != nil {
		return memory{}, fmt.Errorf("asking the kubelet of %s: %w", name, err)
	}
	var summary struct {
		Pods []struct {
			PodRef struct{ Namespace string }
			Memory struct{ RSSBytes, WorkingSetBytes uint64 }
		}
	}
	if err := json.Unmarshal(raw, &summary); err != nil {
		return memory{}, err
	}
	var sum memory
	for i := range summary.Pods {
		if p := &summary.Pods[i]; p.PodRef.Namespace == harness.SystemNamespace {
			sum.RSS += p.Memory.RSSBytes
			sum.WorkingSet += p.Memory.WorkingSetBytes
		}
	}
	return sum, nil
}

func megabytes(bytes uint64) float64 { return float64(bytes) / 1e6 }

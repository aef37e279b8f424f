// Package creation measures how fast objects are created and become ready, and how fast changes take effect.
package creation

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// workers is the number of concurrent requests.
	workers = 8
	// patience is the longest time without a change.
	patience = 2 * time.Minute
)

// Object is an object with conditions.
type Object interface {
	metav1.Object
	GetStatus() *duckv1.Status
}

// Creator is the part of a typed client that creates objects and watches them.
type Creator[O any] interface {
	Create(ctx context.Context, object O, options metav1.CreateOptions) (O, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}

// Measure creates n objects of a kind and waits until all are ready. It reports the rate of the first part of them, the rate of the last part
// relative to it, and the time until all are ready.
func Measure[O Object](b *testing.B, kind string, client Creator[O], n, part int, object func(i int) O) {
	b.Helper()
	events, err := client.Watch(b.Context(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer events.Stop()
	began := time.Now()
	var watching sync.WaitGroup
	watching.Go(func() {
		if err := allReady[O](events, n); err != nil {
			b.Errorf("%s: %v", kind, err)
		}
	})
	var rates []float64
	for first := 0; first < n; first += part {
		began, last := time.Now(), min(first+part, n)
		var creating sync.WaitGroup
		for worker := range workers {
			creating.Go(func() {
				for i := first + worker; i < last; i += workers {
					if _, err := client.Create(b.Context(), object(i), metav1.CreateOptions{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		creating.Wait()
		rates = append(rates, float64(last-first)/time.Since(began).Seconds())
	}
	watching.Wait()
	if len(rates) > 1 {
		b.ReportMetric(rates[0], kind+"/s")
		b.ReportMetric(rates[len(rates)-1]/rates[0], kind+"-last/first")
		b.ReportMetric(time.Since(began).Seconds(), kind+"-ready-s")
	}
}

// Ready reports whether an object is ready.
func Ready[O Object](o O) bool {
	c := o.GetStatus().Conditions.Get(duckv1.ConditionReady)
	return c != nil && c.Status == corev1.ConditionTrue
}

// allReady waits until n objects are ready.
func allReady[O Object](events watch.Interface, n int) error {
	for ready := map[string]bool{}; len(ready) < n; {
		select {
		case event, open := <-events.ResultChan():
			if !open {
				return fmt.Errorf("the watch ended when %d were ready", len(ready))
			}
			o, ok := event.Object.(O)
			if !ok {
				continue
			}
			if Ready(o) {
				ready[o.GetName()] = true
			}
		case <-time.After(patience):
			return fmt.Errorf("%d are ready, and no other became so within %s", len(ready), patience)
		}
	}
	return nil
}

// ChangeRoute gives a Service another tag n times. served returns the time until the host name of a tag is served. It reports the median time
// and the 99th percentile.
func ChangeRoute(b *testing.B, client harness.Editor[*servingv1.Service], name string, n int, served func(tag string) time.Duration) {
	b.Helper()
	took := make([]time.Duration, n)
	for i := range took {
		tag := fmt.Sprintf("tag-%d", i)
		harness.Edit(b, client, name, func(service *servingv1.Service) {
			service.Spec.Traffic = []servingv1.TrafficTarget{{Tag: tag, LatestRevision: new(true), Percent: new(int64(100))}}
		})
		took[i] = served(tag)
	}
	slices.Sort(took)
	b.ReportMetric(figures.Milliseconds(took[n/2]), "route-p50-ms")
	b.ReportMetric(figures.Milliseconds(took[n*99/100]), "route-p99-ms")
}

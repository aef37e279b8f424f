package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// BenchmarkManyServices measures the time until 50 Services, created at once, are all Ready, compared with as many bare
// Deployments. The Deployments run before and after the Services, because earlier work affects the node.
func BenchmarkManyServices(b *testing.B) {
	once(b, func() {
		many := short(50, 10)
		bare := manyDeployments(b, many)
		services := manyServices(b, many)
		if !testing.Short() {
			bare = (bare + manyDeployments(b, many)) / 2
		}
		b.ReportMetric(bare.Seconds(), "bare-s")
		b.ReportMetric(services.Seconds(), "services-s")
		b.ReportMetric(services.Seconds()/bare.Seconds(), "ratio")
	})
}

func manyDeployments(b *testing.B, n int) (took time.Duration) {
	b.Helper()
	inNamespace(b, func(namespace string) {
		deployments := node.Host.AppsV1().Deployments(namespace)
		w, err := deployments.Watch(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		took = untilReady(b, w, n, deploymentReady, func(ctx context.Context, i int) error {
			_, err := deployments.Create(ctx, deployment(fmt.Sprintf("many-%d", i), 1), metav1.CreateOptions{})
			return err
		})
	})
	return took
}

func manyServices(b *testing.B, n int) (took time.Duration) {
	b.Helper()
	inNamespace(b, func(namespace string) {
		services := node.Admin.Knative.ServingV1().Services(namespace)
		w, err := services.Watch(b.Context(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		took = untilReady(b, w, n, serviceReady, func(ctx context.Context, i int) error {
			_, err := services.Create(ctx, service(fmt.Sprintf("many-%d", i), nil), metav1.CreateOptions{})
			return err
		})
	})
	return took
}

// untilReady creates that many objects at once and returns the time until the watch has reported all of them as ready.
func untilReady[T interface {
	*appsv1.Deployment | *servingv1.Service
	GetName() string
}](b *testing.B, w watch.Interface, n int, ready func(T) bool, create func(ctx context.Context, i int) error) time.Duration {
	b.Helper()
	defer w.Stop()
	started := time.Now()
	group, ctx := errgroup.WithContext(b.Context())
	for i := range n {
		group.Go(func() error { return create(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	awaitEach(b, w, n, ready)
	return time.Since(started)
}

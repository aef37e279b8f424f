// Package cluster measures the cost of Services on a cluster with a node, compared with bare Deployments of the same
// application on the same cluster, alternating. Without such a cluster it is skipped.
//
// With -short the benchmarks take few rounds, which only shows that they work.
package cluster

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// patience is the timeout of every wait: with many Pods on few cores, some take long.
const patience = 3 * time.Minute

var (
	node *harness.Node
	// image is the image of the sample application.
	image string
)

func TestMain(m *testing.M) {
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		// This package has no tests.
		os.Exit(m.Run())
	}
	err := open()
	switch {
	case errors.Is(err, harness.ErrNoNode):
		fmt.Println("SKIP: no benchmarks on pods:", err)
		return
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func open() (err error) {
	if node, err = harness.OpenNode(); err != nil {
		return err
	}
	image, err = node.AppImage()
	return err
}

// once runs a measurement of unknown duration.
func once(b *testing.B, measure func()) {
	b.Helper()
	for range b.N {
		measure()
	}
	b.ReportMetric(0, "ns/op")
}

// short returns the number of rounds, or few of them with -short.
func short(rounds, few int) int {
	if testing.Short() {
		return few
	}
	return rounds
}

// inNamespace measures in a separate namespace, which is deleted when it returns: the next measurement has the machine to
// itself.
func inNamespace(b *testing.B, measure func(namespace string)) {
	b.Helper()
	inLargeNamespace(b, patience, measure)
}

// inLargeNamespace is inNamespace with another timeout of the deletion.
func inLargeNamespace(b *testing.B, deletion time.Duration, measure func(namespace string)) {
	b.Helper()
	namespaces := node.Host.CoreV1().Namespaces()
	created, err := namespaces.Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "bench-"}}, metav1.CreateOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(b.Context()), deletion)
		defer cancel()
		if err := namespaces.Delete(ctx, created.Name, metav1.DeleteOptions{}); err != nil {
			b.Errorf("deleting namespace %s: %v", created.Name, err)
		} else if err := harness.Poll(ctx, func() error { return gone(ctx, created.Name) }); err != nil {
			b.Error(err)
		}
	}()
	measure(created.Name)
}

func gone(ctx context.Context, namespace string) error {
	_, err := node.Host.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(fmt.Errorf("namespace %s still exists", namespace), err)
}

// await waits until probe succeeds.
func await(b *testing.B, what string, probe func() error) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	if err := harness.Poll(ctx, probe); err != nil {
		b.Fatalf("waiting until %s: %v", what, err)
	}
}

// median returns the median of an odd number of durations.
func median(all []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)/2]
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

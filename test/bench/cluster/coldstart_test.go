package cluster

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// BenchmarkColdStart measures the first request to a Service at zero, at the client, compared with the time that a bare
// Deployment takes from scale 0 until its Pod is Ready. Each round starts when no Pod of the previous one exists.
func BenchmarkColdStart(b *testing.B) {
	once(b, func() { inNamespace(b, func(namespace string) { coldStarts(b, namespace, short(15, 3)) }) })
}

func coldStarts(b *testing.B, namespace string, rounds int) {
	b.Helper()
	deployments := node.Host.AppsV1().Deployments(namespace)
	services := node.Admin.Knative.ServingV1().Services(namespace)
	name := func(i int) string { return fmt.Sprintf("cold-%d", i) }
	hosts := make([]string, rounds)
	for i := range rounds {
		hosts[i] = deploy(b, namespace, name(i))
		if _, err := deployments.Create(b.Context(), deployment(name(i), 0), metav1.CreateOptions{}); err != nil {
			b.Fatal(err)
		}
	}
	bare, cold := make([]time.Duration, rounds), make([]time.Duration, rounds)
	for i := range rounds {
		awaitNoPods(b, namespace)
		cold[i] = request(b, hosts[i])
		bare[i] = scaleUp(b, namespace, name(i))
		b.Logf("round %d: a request takes %s, a Deployment %s", i, cold[i], bare[i])
		if err := errors.Join(
			services.Delete(b.Context(), name(i), metav1.DeleteOptions{}),
			deployments.Delete(b.Context(), name(i), metav1.DeleteOptions{}),
		); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(milliseconds(median(bare)), "bare-ms")
	b.ReportMetric(milliseconds(median(cold)), "request-ms")
	b.ReportMetric(milliseconds(median(cold)-median(bare)), "added-ms")
}

// deploy creates a Service that soon scales to zero, and returns the host name of its URL.
func deploy(b *testing.B, namespace, name string) (address string) {
	b.Helper()
	services := node.Admin.Knative.ServingV1().Services(namespace)
	if _, err := services.Create(b.Context(), service(name, map[string]string{servingv1.WindowAnnotationKey: "6s"}), metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	await(b, "Service "+name+" is ready", func() error {
		current, err := services.Get(b.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !serviceReady(current) {
			return fmt.Errorf("its conditions are %+v", current.Status.Conditions)
		}
		address = host(current)
		return nil
	})
	return address
}

// request returns the response time.
func request(b *testing.B, address string) time.Duration {
	b.Helper()
	client := node.HTTPClient(patience)
	defer client.CloseIdleConnections()
	started := time.Now()
	r, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+address, nil)
	if err != nil {
		b.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		b.Fatal(err)
	}
	took := time.Since(started)
	if response.StatusCode != http.StatusOK {
		b.Fatalf("the answer of %s is %s", address, response.Status)
	}
	return took
}

// scaleUp returns the time until a Deployment's Pod is Ready.
func scaleUp(b *testing.B, namespace, name string) time.Duration {
	b.Helper()
	pods, err := node.Host.CoreV1().Pods(namespace).Watch(b.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
	if err != nil {
		b.Fatal(err)
	}
	defer pods.Stop()
	started := time.Now()
	if err := scale(b.Context(), namespace, name); err != nil {
		b.Fatal(err)
	}
	awaitEach(b, pods, 1, podReady)
	return time.Since(started)
}

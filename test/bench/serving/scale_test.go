package serving

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/bench/figures"
)

// coldStarts is the number of Services that are activated, one after the other.
const coldStarts = 40

// BenchmarkColdStart measures the first request to a Service at zero, compared with the time of the application from exec to
// its first response.
func BenchmarkColdStart(b *testing.B) {
	figures.Once(b, func() {
		hosts := make([]string, coldStarts)
		for i := range hosts {
			hosts[i] = deploy(b, service(b, fmt.Sprintf("cold-%d", i), 0))
		}
		own, cold := make([]time.Duration, coldStarts), make([]time.Duration, coldStarts)
		for i, host := range hosts {
			started := time.Now()
			_, stop := startApp(b)
			own[i] = time.Since(started)
			stop()

			request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, gateway(b), nil)
			if err != nil {
				b.Fatal(err)
			}
			request.Host = host
			started = time.Now()
			response, err := http.DefaultClient.Do(request)
			if err != nil {
				b.Fatal(err)
			}
			response.Body.Close()
			cold[i] = time.Since(started)
			if response.StatusCode != http.StatusOK {
				b.Fatalf("the answer of %s is %s", host, response.Status)
			}
		}
		b.ReportMetric(figures.Milliseconds(figures.Median(own)), "own-start-ms")
		b.ReportMetric(figures.Milliseconds(figures.Median(cold)-figures.Median(own)), "added-ms")
	})
}

// many is the number of Services that are created at once.
const many = 1000

// BenchmarkManyServices measures the time until a thousand Services, created at once, are all ready, and the memory of the
// server then.
func BenchmarkManyServices(b *testing.B) {
	figures.Once(b, func() {
		services := clients.Knative.ServingV1().Services(namespace)
		watch, err := services.Watch(b.Context(), metav1.ListOptions{LabelSelector: "bench=many"})
		if err != nil {
			b.Fatal(err)
		}
		defer watch.Stop()
		started := time.Now()
		var group sync.WaitGroup
		for worker := range 8 {
			group.Go(func() {
				for i := worker; i < many; i += 8 {
					s := service(b, fmt.Sprintf("many-%d", i), 1)
					s.Labels = map[string]string{"bench": "many"}
					if _, err := services.Create(b.Context(), s, metav1.CreateOptions{}); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		group.Wait()
		created := time.Since(started)
		ready := map[string]bool{}
		for len(ready) < many {
			select {
			case event, open := <-watch.ResultChan():
				if !open {
					b.Fatalf("the watch ended when %d Services were ready", len(ready))
				}
				if s, ok := event.Object.(*servingv1.Service); ok && isReady(s) {
					ready[s.Name] = true
				}
			case <-time.After(time.Minute):
				b.Fatalf("%d Services are ready, and no other became so for a minute", len(ready))
			}
		}
		b.ReportMetric(created.Seconds(), "created-s")
		b.ReportMetric(time.Since(started).Seconds(), "ready-s")
		b.ReportMetric(float64(server.ResidentMemory(b))/1e6, "server-MB")
	})
}

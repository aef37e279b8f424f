package serving

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestAtRest checks that Services at zero cause no writes and almost no CPU time compared with a server without Services.
func TestAtRest(t *testing.T) {
	t.Parallel()
	const (
		services = 200
		window   = 5 * time.Second
		windows  = 3
		// share is the fraction of one processor that the Services may use.
		share = 0.03
	)
	config := writeSettings(t, map[string]map[string]string{"config-autoscaler": {"allow-zero-initial-scale": "true"}})
	s := start(t, t.TempDir(), "--config-dir", config.dir)
	cpuTimeIn := func() time.Duration {
		before := cpuTime(t, s.PID())
		<-time.After(window)
		return cpuTime(t, s.PID()) - before
	}
	// The share of an empty server depends on the machine and its load.
	idle := cpuTimeIn()
	client := s.Knative.ServingV1().Services("default")
	watched, err := client.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	var creating errgroup.Group
	creating.SetLimit(8)
	for i := range services {
		creating.Go(func() error {
			_, err := client.Create(t.Context(), app(t, "default", "rest-"+strconv.Itoa(i), scaling("initial-scale", "0")), metav1.CreateOptions{})
			return err
		})
	}
	if err := creating.Wait(); err != nil {
		t.Fatal(err)
	}
	// A watch, because lists of that many objects would add load.
	ready := map[string]bool{}
	for timeout := time.After(time.Minute); len(ready) < services; {
		select {
		case <-timeout:
			t.Fatalf("%d of %d Services are ready", len(ready), services)
		case event := <-watched.ResultChan():
			service, ok := event.Object.(*servingv1.Service)
			if !ok {
				t.Fatalf("the watch ended with %+v", event)
			}
			if isReady(service, &service.Status.Status) == nil {
				ready[service.Name] = true
			}
		}
	}
	versions := s.settled(t)
	written, err := s.storeRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	// The same work takes more CPU time while other tests use the caches of the processor. The use by Services at rest is in each window.
	limit, used := idle+time.Duration(share*float64(window)), time.Duration(math.MaxInt64)
	for i := 0; i < windows && used > limit; i++ {
		used = min(used, cpuTimeIn())
	}
	if used > limit {
		t.Errorf("%d Services at rest used %s of the processor in %s, and none used %s: want at most %s", services, used, window, idle, limit)
	}
	if now, err := s.storeRevision(t.Context()); err != nil || now != written {
		t.Errorf("the store was at revision %s and is at %s (%v): writes occurred", written, now, err)
	}
	if diff := cmp.Diff(versions, s.mustVersions(t, "")); diff != "" {
		t.Errorf("written meanwhile (-before +after):\n%s", diff)
	}
}

// cpuTime returns the CPU time of a process, with a resolution of 10 ms.
func cpuTime(t testing.TB, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// proc_pid_stat(5): utime and stime are the fields 14 and 15; the name before may have blanks and parentheses.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	user, err := strconv.Atoi(fields[11])
	system, errSystem := strconv.Atoi(fields[12])
	if err := errors.Join(err, errSystem); err != nil {
		t.Fatal(err)
	}
	return time.Duration(user+system) * 10 * time.Millisecond
}

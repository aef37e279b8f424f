package serving

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestAtRest checks that Services at zero cause no writes and almost no CPU time compared with a server without Services.
func TestAtRest(t *testing.T) {
	t.Parallel()
	const (
		services = 200
		window   = 5 * time.Second
		windows  = 5
		// share is the fraction of one processor that the Services may use.
		share = 0.03
	)
	config := writeSettings(t, map[string]map[string]string{"config-autoscaler": {"allow-zero-initial-scale": "true"}})
	// What detects mutations compares every object in a cache each second.
	standalone, err := harness.StartStandaloneBy([]string{"env", "--unset=" + harness.DetectMutationsVariable}, t.TempDir(), "--config-dir", config.dir)
	if err != nil {
		t.Fatal(err)
	}
	standalone.StopAfter(t)
	s, err := newServer(standalone)
	if err != nil {
		t.Fatal(err)
	}
	cpuTimeIn := func() time.Duration {
		before := cpuTime(t, s.PID())
		<-time.After(window)
		return cpuTime(t, s.PID()) - before
	}
	// The share of an empty server depends on the machine and its load. It is too small in a window in which the server is stalled.
	idle := max(cpuTimeIn(), cpuTimeIn())
	client := s.Knative.ServingV1().Services("default")
	// An informer, because lists of that many objects would add load. It continues if the server ends its watch for being read slowly.
	factory := externalversions.NewSharedInformerFactoryWithOptions(s.Knative, 0, externalversions.WithNamespace("default"))
	lister := factory.Serving().V1().Services().Lister()
	factory.Start(t.Context().Done())
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
	harness.EventuallyWithin(t, 5*time.Minute, "all Services are ready", func(context.Context) error {
		all, err := lister.List(labels.Everything())
		ready := 0
		for _, service := range all {
			if isReady(service, &service.Status.Status) == nil {
				ready++
			}
		}
		if ready < services {
			err = errors.Join(err, fmt.Errorf("%d of %d Services are ready", ready, services))
		}
		return err
	})
	// The same work takes more CPU time while other tests use the caches of the processor, and a slow machine may write Events for minutes.
	// What Services at rest use is in each window.
	limit := idle + time.Duration(share*float64(window))
	var failed error
	for range windows {
		if failed = s.isAtRest(t, limit, cpuTimeIn); failed == nil {
			return
		}
	}
	t.Errorf("%d Services at rest: %s, and none used %s of the processor in %s", services, failed, idle, window)
}

// isAtRest waits until writes have ended, and returns an error if a write occurs in the window that follows or more CPU time is used than
// limit.
func (s *server) isAtRest(t testing.TB, limit time.Duration, cpuTimeInWindow func() time.Duration) error {
	t.Helper()
	versions := s.settled(t)
	written, err := s.storeRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	used := cpuTimeInWindow()
	now, err := s.storeRevision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if now != written {
		return fmt.Errorf("the store was at revision %s and is at %s; written of Serving (-before +after):\n%s",
			written, now, cmp.Diff(versions, s.mustVersions(t, "")))
	}
	if used > limit {
		return fmt.Errorf("they used %s of the processor, want at most %s", used, limit)
	}
	return nil
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

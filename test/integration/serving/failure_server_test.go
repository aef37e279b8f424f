package serving

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestKilledServer kills the server under load and restarts it with the same data and port. It serves within seconds, finds all
// backends, and leaves no orphaned process.
func TestKilledServer(t *testing.T) {
	dir := t.TempDir()
	first, err := harness.StartStandalone(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(first.Kill)
	s, err := newServer(first)
	if err != nil {
		t.Fatal(err)
	}
	// No backend of another test has this name.
	name := fmt.Sprintf("survivor-%d", os.Getpid())
	site := s.newSite(t, name, instances("2"))
	site.untilScale(t, 2)
	load := generate(t, 16, 5*time.Millisecond, site.keepAlive("/?sleep=5ms"))
	harness.Eventually(t, "the load is answered", func() error {
		if n := load.answered.Load(); n < 200 {
			return fmt.Errorf("%d requests were", n)
		}
		return nil
	})
	first.Kill()
	if load.failed.Load() > 0 && load.failures[0].code != 0 {
		t.Errorf("a request before the server was killed failed: %v", load.failures[0])
	}

	_, port, err := net.SplitHostPort(s.gateway)
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	second, err := harness.StartStandalone(dir, "--gateway-port", port)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { second.Kill() })
	a, err := site.get(t.Context(), site.url+"/")
	took := time.Since(began).Round(time.Millisecond)
	if err != nil || a.code != http.StatusOK {
		t.Errorf("%s after the server was started again the first request got %+v, %v, want 200", took, a, err)
	}
	t.Logf("the first request was answered %s after the server was started again", took)
	restarted, err := newServer(second)
	if err != nil {
		t.Fatal(err)
	}
	site.server = restarted
	site.untilScale(t, 2)
	pids := map[int]bool{}
	harness.Eventually(t, "only the processes of serving instances remain", func() error {
		pids[report[infoReport](t, site, "/info").PID] = true
		found := processesOf(t, name)
		if len(found) != 2 || !pids[found[0]] || !pids[found[1]] {
			return fmt.Errorf("processes %v run, of which %v serve", found, pids)
		}
		return nil
	})
	load.end()
	since := generate(t, 16, 5*time.Millisecond, site.keepAlive("/"))
	harness.Eventually(t, "the clients are answered", func() error {
		if n := since.answered.Load(); n < 200 {
			return fmt.Errorf("%d requests were", n)
		}
		return nil
	})
	since.mustNotFail(t, 200)

	if err := second.Stop(); err != nil {
		t.Error(err)
	}
	if left := processesOf(t, name); len(left) > 0 {
		t.Errorf("after the server has ended processes %v run", left)
	}
}

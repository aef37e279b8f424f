package serving

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestKilledInstance kills one of two backends under load. Only its requests in flight fail, and another backend replaces it.
func TestKilledInstance(t *testing.T) {
	t.Parallel()
	for protocol := range shared.clients(t) {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			const hanging = 6
			s := shared.newSite(t, "killed", instances("2"))
			s.untilScale(t, 2)
			client := untimed(s.clients(t)[protocol])
			// The backend with the fewest requests receives the next one, so each receives half of them.
			ended := make(chan error, hanging)
			for range hanging {
				go func() {
					a, err := ask(t.Context(), client, http.MethodGet, s.url+"/hang", nil)
					if err == nil {
						err = fmt.Errorf("%d %s", a.code, a.body)
					}
					ended <- err
				}()
			}
			s.untilMetric(t, "knative_gateway_in_flight_requests", hanging)
			of := s.keepAlive
			if protocol == "h2c" {
				of = func(path string) clientMaker { return s.streams(t, path) }
			}
			load := generate(t, 16, 3*time.Millisecond, of("/info?sleep=5ms"))
			harness.Eventually(t, "the load is answered", func() error {
				if n := load.answered.Load(); n < 200 {
					return fmt.Errorf("%d requests were", n)
				}
				return nil
			})

			victim := report[infoReport](t, s, "/info").PID
			if err := syscall.Kill(victim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			harness.Eventually(t, "the process has exited", func() error {
				// A process whose main thread ended may have other threads that keep its connections open.
				if err := syscall.Kill(victim, 0); !errors.Is(err, syscall.ESRCH) {
					return fmt.Errorf("process %d exists: %w", victim, errors.Join(err, os.ErrExist))
				}
				return nil
			})
			gone := time.Now()
			for range hanging / 2 {
				select {
				case err := <-ended:
					if !strings.HasPrefix(err.Error(), "502 ") {
						t.Errorf("a request that the killed instance was serving got %v, want 502", err)
					}
				case <-time.After(harness.Patience):
					t.Fatal("a request that the killed instance was serving got no answer")
				}
			}
			harness.Eventually(t, "another instance answers", func() error {
				pids := map[int]bool{}
				for range 8 {
					pids[report[infoReport](t, s, "/info").PID] = true
				}
				if len(pids) != 2 || pids[victim] {
					return fmt.Errorf("the instances are %v", pids)
				}
				return nil
			})
			load.end()
			for _, f := range load.failures {
				if f.began.After(gone) || f.code != http.StatusBadGateway {
					t.Errorf("a request that began %s after the instance had exited failed: %v", f.began.Sub(gone), f)
				}
			}
			select {
			case err := <-ended:
				t.Errorf("a request at the instance that was not killed ended: %v", err)
			default:
			}
		})
	}
}

// running reports whether a process exists and is not a zombie.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, state, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(state, "Z")
}

// processesOf returns the processes of a Service's backends, found by their environment.
func processesOf(t testing.TB, service string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, file := range files {
		environ, err := os.ReadFile(file)
		if err != nil {
			continue // it ended, or another user owns it
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/environ", &pid); err != nil {
			t.Fatal(err)
		}
		if strings.Contains("\x00"+string(environ), "\x00K_SERVICE="+service+"\x00") && running(pid) {
			found = append(found, pid)
		}
	}
	return found
}

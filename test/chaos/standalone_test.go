package chaos

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// standalone is a standalone server whose ports stay the same when it is restarted.
type standalone struct {
	dataDir, configDir string
	gateway            string
	args               []string
	admin              atomic.Pointer[harness.Clients]
	starts             atomic.Int64

	mu     sync.Mutex
	server *harness.Standalone // guarded by mu
}

var _ installation = &standalone{}

func newStandalone(t *testing.T, dir string) *standalone {
	t.Helper()
	s := &standalone{dataDir: filepath.Join(dir, "data"), configDir: t.TempDir()}
	var ports [3]string
	for i := range ports {
		number, err := port.Stable()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(number)
	}
	s.gateway = net.JoinHostPort("127.0.0.1", ports[1])
	s.args = []string{"--secure-port", ports[0], "--gateway-port", ports[1], "--broker-port", ports[2], "--config-dir", s.configDir}
	s.start(t)
	t.Cleanup(func() {
		if err := s.current().Stop(); err != nil {
			t.Error(err)
		}
		if log := s.current().Log(); t.Failed() {
			t.Logf("the end of the server's output:\n%s", log[max(0, len(log)-16384):])
		}
	})
	return s
}

func (s *standalone) current() *harness.Standalone {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.server
}

// start starts the server on its data.
func (s *standalone) start(t *testing.T) {
	t.Helper()
	s.starts.Add(1) // before the process serves, so that no scrape of it counts for the one before
	server, err := harness.StartStandalone(s.dataDir, s.args...)
	if err != nil {
		t.Fatal(err)
	}
	clients, err := harness.ClientsOf(server.Kubeconfig)
	if err != nil {
		server.Kill()
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = server
	s.admin.Store(clients)
}

// restartIfExited is the supervisor of a server that exits because its disk is full.
func (s *standalone) restartIfExited(t *testing.T) {
	t.Helper()
	select {
	case <-s.current().Exited():
		log := s.current().Log()
		t.Logf("the server exited and is restarted; its last output: %s", log[max(0, len(log)-1024):])
		s.start(t)
	default:
	}
}

func (s *standalone) clients() *harness.Clients { return s.admin.Load() }

func (s *standalone) container(t *testing.T) map[string]any {
	t.Helper()
	return map[string]any{"image": "ko.local/app", "command": []any{harness.AppBinary(t)}}
}

func (s *standalone) requests() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: attemptLimit}).DialContext(ctx, network, s.gateway)
	}}}
}

func (s *standalone) events() *http.Client {
	return &http.Client{Timeout: attemptLimit, Transport: &http.Transport{}}
}

func (s *standalone) sinkAddress() string { return "127.0.0.1" }

func (s *standalone) scrape(ctx context.Context) (processes string, dropped float64, err error) {
	processes = fmt.Sprint(s.starts.Load())
	response, err := s.clients().Send(ctx, harness.Request{Method: http.MethodGet, Path: "/metrics", Accept: "text/plain"})
	if err != nil {
		return "", 0, err
	}
	if response.Code != http.StatusOK || processes != fmt.Sprint(s.starts.Load()) {
		return "", 0, fmt.Errorf("get metrics: %d", response.Code)
	}
	dropped, err = sum(string(response.Body), "knative_eventing_events_dropped_total", func(string) bool { return true })
	return processes, dropped, err
}

// sum adds the values of the series of a metric whose labels fulfill a condition.
func sum(metrics, name string, counts func(labels string) bool) (total float64, err error) {
	lines := bufio.NewScanner(strings.NewReader(metrics))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		labels, found := strings.CutPrefix(lines.Text(), name+"{")
		if !found || !counts(labels) {
			continue
		}
		fields := strings.Fields(lines.Text())
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			return 0, err
		}
		total += value
	}
	return total, lines.Err()
}

func (s *standalone) set(_ context.Context, name string, data map[string]string) error {
	content, err := yaml.Marshal(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": name}, "data": data})
	if err != nil {
		return err
	}
	fresh := filepath.Join(s.configDir, "."+name)
	if err := os.WriteFile(fresh, content, 0o600); err != nil {
		return err
	}
	return os.Rename(fresh, filepath.Join(s.configDir, name+".yaml"))
}

// backends returns the processes of Revisions.
func (s *standalone) backends() ([]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return nil, err
	}
	var found []int
	for _, file := range files {
		// An unreadable process has ended.
		if environ, err := os.ReadFile(file); err == nil && strings.Contains(string(environ), "@"+s.dataDir+"/") {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
			if err != nil {
				return nil, err
			}
			found = append(found, pid)
		}
	}
	slices.Sort(found)
	return found, nil
}

func (s *standalone) faults(site *site, d *disk) []fault {
	all := []fault{
		{name: "kill -9", repair: s.start, inject: func(*testing.T, time.Duration, uint64) { s.current().Kill() }},
		{name: "SIGTERM", repair: s.start, inject: func(t *testing.T, _ time.Duration, _ uint64) {
			if err := s.current().Stop(); err != nil {
				t.Error(err)
			}
		}},
		{name: "SIGSTOP", longest: 6 * time.Second, inject: func(t *testing.T, duration time.Duration, _ uint64) {
			pause(t, s.current().PID(), duration)
		}},
		{name: "backend killed", inject: func(t *testing.T, _ time.Duration, choice uint64) {
			found, err := s.backends()
			if err != nil || len(found) == 0 {
				return // the load notices if no backend ever runs
			}
			if err := syscall.Kill(found[choice%uint64(len(found))], syscall.SIGKILL); err != nil && err != syscall.ESRCH {
				t.Error(err)
			}
		}},
		site.settingsFault(), site.rolloutFault(), site.subscribersFault(),
	}
	if d != nil {
		all = append(all,
			fault{name: "full disk", longest: 5 * time.Second, repair: s.restartIfExited,
				inject: func(t *testing.T, duration time.Duration, _ uint64) { d.fill(t, duration) }},
			fault{name: "slow disk", longest: 5 * time.Second, repair: s.restartIfExited,
				inject: func(t *testing.T, duration time.Duration, _ uint64) { d.slow(t, duration) }})
	}
	return all
}

// pause stops a process for some time.
func pause(t *testing.T, pid int, duration time.Duration) {
	t.Helper()
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Error(err)
		return
	}
	<-time.After(duration)
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Error(err)
	}
}

// TestStandalone checks the promises of docs/reliability.md on a standalone server.
func TestStandalone(t *testing.T) {
	duration, seed := parameters(t)
	d, dir := newDisk(t), t.TempDir()
	if d != nil {
		dir = d.dir
	}
	server := newStandalone(t, dir)
	s := newSite(t, server, newRecorder(), [3]string{"chaos-a", "chaos-b", "chaos-objects"})
	s.endure(t, duration, seed, server.faults(s, d))
}

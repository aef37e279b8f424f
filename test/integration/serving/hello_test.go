package serving

import (
	"context"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// helloWithin is the maximum time from creation of the sample until it is ready. helloCommands is the same in commands of kubectl, for
// slow machines: on others, one needs 150 ms.
const helloWithin, helloCommands = 2 * time.Second, 13

// TestHello checks that the sample becomes ready soon after it is applied, that its URL works unchanged, that an update and a
// rollback by name take effect, and that deletion leaves no objects and no processes (serving 7.0.1-4, 7.2-2, 8-4, 8-7,
// 9.1.3-6, 9.1.3-7, 10.2-1). It does not run in parallel, because it measures time.
// It covers serving 6-8.
func TestHello(t *testing.T) {
	dir := t.TempDir()
	s := start(t, dir)
	kubectl := harness.NewKubectl(t, s.Kubeconfig, "default")
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(root, "artifacts", "samples", "hello.yaml")
	manifest, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}

	// An attempt may be slow because of other work on the machine.
	for end := time.Now().Add(time.Minute); ; {
		took := s.timeToReady(t, "default", "hello")
		began := time.Now()
		kubectl.Must(t, "", "get", "namespace", "default")
		within := max(helloWithin, helloCommands*time.Since(began))
		kubectl.Must(t, "", "apply", "-f", file)
		d := <-took
		if d <= within {
			break
		}
		if time.Now().After(end) {
			t.Errorf("in the last of several attempts ready %s after it was created, want at most %s", d, within)
			break
		}
		kubectl.Must(t, "", "delete", "-f", file)
		s.removed(t, "")
	}
	service := s.ready(t, "default", "hello")
	if got := open(t, service.Status.URL); got != "Hello World!\n" {
		t.Errorf("%s answers %q", service.Status.URL, got)
	}

	variant := func(revision, target string) string {
		text := strings.Replace(string(manifest), "value: World", "value: "+target, 1)
		changed := strings.Replace(text, "  template:\n", "  template:\n    metadata:\n      name: hello-"+revision+"\n", 1)
		if changed == text {
			t.Fatalf("the sample has no template:\n%s", text)
		}
		return changed
	}
	for _, step := range []struct{ revision, target string }{{"earth", "Earth"}, {"moon", "Moon"}, {"earth", "Earth"}} {
		kubectl.Must(t, variant(step.revision, step.target), "apply", "-f", "-")
		kubectl.Must(t, "", "wait", "--for=condition=Ready", "--timeout=60s", "ksvc/hello")
		s.until(t, "default", "hello", "has migrated to "+step.revision, func(service *servingv1.Service) error {
			if name := service.Status.LatestReadyRevisionName; name != "hello-"+step.revision || service.Status.ObservedGeneration != service.Generation {
				return fmt.Errorf("generation %d, status %+v", service.Generation, service.Status)
			}
			return nil
		})
		s.ready(t, "default", "hello")
		if got, want := open(t, service.Status.URL), "Hello "+step.target+"!\n"; got != want {
			t.Errorf("at revision %s: %q, want %q", step.revision, got, want)
		}
	}
	s.mustHaveRevisions(t, "default", "hello-00001", "hello-earth", "hello-moon")

	back := strings.Replace(variant("earth", "Earth"), "\nspec:\n", "\nspec:\n  traffic: [{revisionName: hello-00001, percent: 100}]\n", 1)
	kubectl.Must(t, back, "apply", "-f", "-")
	s.ready(t, "default", "hello")
	if got := open(t, service.Status.URL); got != "Hello World!\n" {
		t.Errorf("with all traffic at the first Revision again: %q", got)
	}

	if len(s.processes(t, dir)) == 0 {
		t.Error("no process carries the mark of the server's data directory")
	}
	kubectl.Must(t, "", "delete", "ksvc", "hello")
	s.removed(t, "")
	harness.Eventually(t, "no process remains", func() error {
		if left := s.processes(t, dir); len(left) > 0 {
			return fmt.Errorf("processes %v run", left)
		}
		return nil
	})
}

// timeToReady measures the time from the creation of a Service until it is ready, by a watch.
func (s *server) timeToReady(t *testing.T, namespace, name string) <-chan time.Duration {
	t.Helper()
	took := make(chan time.Duration, 1)
	watched, err := s.Knative.ServingV1().Services(namespace).Watch(t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + name})
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer watched.Stop()
		var created time.Time
		for event := range watched.ResultChan() {
			service, ok := event.Object.(*servingv1.Service)
			if !ok {
				break
			}
			if created.IsZero() {
				created = time.Now()
			}
			if isReady(service, &service.Status.Status) == nil {
				took <- time.Since(created)
				return
			}
		}
		took <- math.MaxInt64
	}()
	return took
}

// open sends a GET request to a URL unchanged, except that it resolves *.localhost as resolvers do.
func open(t testing.TB, target string) string {
	t.Helper()
	dialer := &net.Dialer{}
	client := &http.Client{Timeout: harness.Patience, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			if strings.HasSuffix(host, ".localhost") {
				address = net.JoinHostPort("127.0.0.1", port)
			}
			return dialer.DialContext(ctx, network, address)
		},
	}}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("GET %s: %d %q %v", target, response.StatusCode, body, err)
	}
	return string(body)
}

// processes returns the backend processes of a server with a data directory, found by their mark.
func (s *server) processes(t testing.TB, dataDir string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		// An unreadable process has ended.
		if environ, err := os.ReadFile(file); err == nil && strings.Contains(string(environ), "@"+dataDir+"/") {
			found = append(found, filepath.Base(filepath.Dir(file)))
		}
	}
	return found
}

// TestTrafficSplit checks that a 90/10 split assigns 20,000 requests to the Revisions within half a percentage point,
// independent of connections: each request is assigned on its own (serving 8-1, 8-6, 8-9, 8-10, 9.1.3-10, 10.2-1, 10.2-4,
// 10.2-5).
func TestTrafficSplit(t *testing.T) {
	t.Parallel()
	const requests, clients = 20_000, 16
	ns := namespace()
	s := shared
	s.deploy(t, app(t, ns, "split", env("TARGET", "old"), revisionName("old"), scaling("min-scale", "1")))
	service := s.deploy(t, app(t, ns, "split", env("TARGET", "new"), revisionName("new"), scaling("min-scale", "1"),
		traffic(pinned("split-old", 90), latest(10))))
	for i, want := range []servingv1.TrafficTarget{pinned("split-old", 90), latest(10)} {
		want.RevisionName = []string{"split-old", "split-new"}[i]
		if got := service.Status.Traffic[i]; got.RevisionName != want.RevisionName || ptr.Deref(got.LatestRevision, !*want.LatestRevision) != *want.LatestRevision ||
			ptr.Deref(got.Percent, 0) != *want.Percent {
			t.Errorf("status.traffic[%d] is %+v, want %+v", i, got, want)
		}
	}

	var left, fresh, failed atomic.Int64
	var fault atomic.Value
	left.Store(requests)
	var running sync.WaitGroup
	for range clients {
		running.Go(func() {
			for left.Add(-1) >= 0 {
				a, err := s.get(t.Context(), service.Status.URL)
				switch {
				case err != nil || a.code != http.StatusOK:
					failed.Add(1)
					fault.Store(fmt.Sprintf("%+v, %v", a, err))
				case a.body == "Hello new!\n":
					fresh.Add(1)
				}
			}
		})
	}
	running.Wait()
	if failed.Load() > 0 {
		t.Fatalf("%d requests failed, one with %v", failed.Load(), fault.Load())
	}
	if share := 100 * float64(fresh.Load()) / requests; math.Abs(share-10) > 0.5 {
		t.Errorf("%.2f %% of the requests went to the Revision with 10 %%", share)
	}
}

// hostOf returns the host name of a URL.
func hostOf(t testing.TB, text string) string {
	t.Helper()
	parsed, err := url.Parse(text)
	if err != nil || parsed.Hostname() == "" || parsed.Scheme != "http" {
		t.Fatalf("%q must be an http URL with a host (%v)", text, err)
	}
	return parsed.Hostname()
}

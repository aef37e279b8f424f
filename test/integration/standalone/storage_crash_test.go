package standalone

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// journal is the set of acknowledged writes: the last write of each object.
type journal struct {
	mu    sync.Mutex
	acks  map[string]ack // guarded by mu; by path
	count int            // guarded by mu
	// reached is closed after count acknowledgements.
	target  int
	reached chan struct{}
}

// ack is one acknowledged write.
type ack struct {
	kind, namespace, name string
	round                 int
	resourceVersion       uint64
	deleted               bool
}

func newJournal(target int) *journal {
	return &journal{acks: map[string]ack{}, target: target, reached: make(chan struct{})}
}

func (j *journal) record(path string, a ack) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.acks[path] = a
	if j.count++; j.count == j.target {
		close(j.reached)
	}
}

// write creates and changes objects until the server does not respond. The last request may have been executed without an
// acknowledgement.
func (j *journal) write(ctx context.Context, c *harness.Clients, worker int) (pending string) {
	kinds := []harness.Kind{harness.KindOf("Service"), harness.KindOf("Trigger"), harness.KindOf("Channel")}
	for n := 0; ; n++ {
		k := kinds[n%len(kinds)]
		obj := k.Object(crashNamespace(worker), fmt.Sprintf("a-%d", n))
		path := pathOf(obj)
		obj.SetLabels(map[string]string{"round": "0"})
		requests := []harness.Request{
			{Method: "POST", Path: k.Collection(obj.GetNamespace()), Body: obj},
			{Method: "PATCH", Path: path, ContentType: mergePatch, Body: object{"metadata": object{"labels": object{"round": "1"}}}},
			{Method: "PATCH", Path: path + "/status", ContentType: mergePatch, Body: object{"status": object{"observedGeneration": 2}}},
		}
		if n%5 == 4 {
			requests = append(requests, harness.Request{Method: "DELETE", Path: path})
		}
		for round, request := range requests {
			response, err := c.Send(ctx, request)
			if err != nil || response.Code/100 != 2 {
				return path
			}
			a := ack{kind: k.Kind, namespace: obj.GetNamespace(), name: obj.GetName(), round: round, deleted: request.Method == "DELETE"}
			live := &unstructured.Unstructured{}
			if err := live.UnmarshalJSON(response.Body); err == nil && !a.deleted {
				a.resourceVersion, _ = strconv.ParseUint(live.GetResourceVersion(), 10, 64)
			}
			j.record(path, a)
		}
	}
}

func crashNamespace(worker int) string { return fmt.Sprintf("crash-%d", worker) }

func createNamespace(t *testing.T, c *harness.Clients, name string) {
	t.Helper()
	body := object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": name}}
	if response := c.Do(t, harness.Request{Method: "POST", Path: "/api/v1/namespaces", Body: body}); response.Code != http.StatusCreated {
		t.Fatalf("create Namespace %s: %d %s", name, response.Code, response.Body)
	}
}

// TestKillDuringWrites kills the server at any moment: acknowledged writes are stored when it starts again on its directory,
// and watches resume or have to list again.
func TestKillDuringWrites(t *testing.T) {
	const writers = 6
	for _, moment := range []int{1, 60, 250} {
		t.Run(fmt.Sprintf("after %d acknowledgements", moment), func(t *testing.T) {
			dir := t.TempDir()
			first := harness.RunAPI(t, dir, "--controllers-user=admin")
			clients := clientsOf(t, first)
			seen := make(chan string, 1)
			watcher, err := clients.Dynamic.Resource(harness.KindOf("Service").GVR()).Watch(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			go func() { seen <- lastVersion(watcher) }()

			j := newJournal(moment)
			var group sync.WaitGroup
			pending := make([]string, writers)
			for i := range writers {
				// The controllers, who also write status, create no Namespaces.
				createNamespace(t, clients, crashNamespace(i))
			}
			for i := range writers {
				group.Go(func() { pending[i] = j.write(t.Context(), clients, i) })
			}
			stopped := make(chan struct{})
			go func() {
				group.Wait()
				close(stopped)
			}()
			select {
			case <-j.reached:
			case <-stopped:
				t.Fatalf("the last writes failed before the server was killed: %q", pending)
			}
			first.Kill()
			<-stopped
			resumeFrom := <-seen

			second := harness.RunAPI(t, dir)
			clients = clientsOf(t, second)
			unknown := map[string]bool{}
			for _, path := range pending {
				unknown[path] = true
			}
			for path, a := range j.acks {
				checkAcknowledged(t, clients, path, a, unknown[path])
			}
			if resumeFrom != "" {
				checkResumes(t, clients, resumeFrom)
			}
			t.Logf("%d acknowledged writes of %d objects", j.count, len(j.acks))
		})
	}
}

func clientsOf(t testing.TB, s *harness.Standalone) *harness.Clients {
	t.Helper()
	clients, err := harness.ClientsOf(s.Kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	return clients
}

// lastVersion receives events until the watch ends, and returns the last version.
func lastVersion(w watch.Interface) string {
	version := ""
	for event := range w.ResultChan() {
		if obj, ok := event.Object.(*unstructured.Unstructured); ok && event.Type != watch.Error {
			version = obj.GetResourceVersion()
		}
	}
	return version
}

// checkAcknowledged checks that a write is stored. pending is true if the next write of the object may be stored too.
func checkAcknowledged(t *testing.T, c *harness.Clients, path string, a ack, pending bool) {
	t.Helper()
	response := c.Do(t, harness.Request{Method: "GET", Path: path})
	switch {
	case a.deleted:
		if response.Code != http.StatusNotFound {
			t.Errorf("%s was deleted, but is answered with %d", path, response.Code)
		}
		return
	case response.Code == http.StatusNotFound && pending:
		return
	case response.Code != http.StatusOK:
		t.Errorf("%s was acknowledged in round %d, but is answered with %d", path, a.round, response.Code)
		return
	}
	live := response.Object(t)
	version, _ := strconv.ParseUint(live.GetResourceVersion(), 10, 64)
	if version < a.resourceVersion || version > a.resourceVersion && !pending {
		t.Errorf("%s is at version %d, acknowledged was %d", path, version, a.resourceVersion)
	}
	if a.round >= 1 && live.GetLabels()["round"] != "1" {
		t.Errorf("%s has lost its label: %v", path, live.GetLabels())
	}
	if a.round >= 2 && field(live, "status", "observedGeneration") != int64(2) {
		t.Errorf("%s has lost its status: %v", path, live.Object["status"])
	}
}

// checkResumes resumes a watch of Services from a version before the kill.
func checkResumes(t *testing.T, c *harness.Clients, version string) {
	t.Helper()
	k := harness.KindOf("Service")
	w, err := c.Dynamic.Resource(k.GVR()).Namespace("after").Watch(t.Context(), metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		wantGoneError(t, err)
		return
	}
	defer w.Stop()
	c.Do(t, harness.Request{Method: "POST", Path: k.Collection("after"), Body: k.Object("after", "a")}).Object(t)
	event, err := receive(t.Context(), w)
	if err != nil {
		t.Fatal(err)
	}
	if event.Type == watch.Error {
		status, ok := event.Object.(*metav1.Status)
		if !ok || status.Code != http.StatusGone {
			t.Errorf("the watch ended with %v, want 410", event.Object)
		}
		return
	}
	if obj := event.Object.(*unstructured.Unstructured); event.Type != watch.Added || obj.GetName() != "a" {
		t.Errorf("got %s of %s", event.Type, obj.GetName())
	}
}

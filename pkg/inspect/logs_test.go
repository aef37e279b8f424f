package inspect

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned"
)

// fakeServer answers requests for the Service hello and the logs of its Revisions.
type fakeServer struct {
	t *testing.T
	// services are the states of the Service that a watch returns, ten seconds each. log answers the requests for logs, one at a time.
	services []*servingv1.Service
	mu       sync.Mutex
	log      func(revision string, query map[string][]string) (lines string, open time.Duration, code int)
}

func (f *fakeServer) RoundTrip(r *http.Request) (*http.Response, error) {
	path := strings.TrimPrefix(r.URL.Path, "/apis/serving.knative.dev/v1/namespaces/shop/")
	body, writer := io.Pipe()
	code := http.StatusOK
	respond := func() {}
	switch {
	case r.URL.Query().Get("watch") != "":
		respond = func() {
			for _, service := range f.services {
				event := map[string]any{"type": "MODIFIED", "object": service}
				_ = json.NewEncoder(writer).Encode(event)
				await(r.Context(), 10*time.Second)
			}
			_ = json.NewEncoder(writer).Encode(map[string]any{"type": "DELETED", "object": f.services[0]})
			await(r.Context(), time.Hour)
		}
	case strings.HasPrefix(path, "revisions/") && strings.HasSuffix(path, "/log"):
		f.mu.Lock()
		lines, open, status := f.log(strings.TrimSuffix(strings.TrimPrefix(path, "revisions/"), "/log"), r.URL.Query())
		f.mu.Unlock()
		code = status
		respond = func() {
			_, _ = io.WriteString(writer, lines)
			await(r.Context(), open)
		}
	default:
		code = http.StatusNotFound
	}
	header := http.Header{"Content-Type": {"application/json"}}
	if code != http.StatusOK {
		status := apierrors.NewGenericServerResponse(code, "GET", schema.GroupResource{}, "", "", 0, false).Status()
		status.APIVersion, status.Kind = "v1", "Status"
		respond = func() { _ = json.NewEncoder(writer).Encode(status) }
	}
	go func() {
		respond()
		_ = writer.Close()
	}()
	return &http.Response{StatusCode: code, Header: header, Body: body, Request: r}, nil
}

func await(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

func (f *fakeServer) logs(options LogOptions) (*Logs, *bytes.Buffer) {
	f.t.Helper()
	client, err := versioned.NewForConfigAndClient(&rest.Config{Host: "http://api", QPS: -1}, &http.Client{Transport: f})
	if err != nil {
		f.t.Fatal(err)
	}
	out := &bytes.Buffer{}
	return &Logs{
		Client: client, Namespace: "shop", Clock: clock.RealClock{}, LogOptions: options,
		Print: func(line []byte) error {
			out.Write(line)
			return nil
		},
	}, out
}

func serviceWith(revisions ...string) *servingv1.Service {
	service := &servingv1.Service{TypeMeta: metav1.TypeMeta{APIVersion: "serving.knative.dev/v1", Kind: "Service"}, ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "hello"}}
	for _, revision := range revisions {
		service.Status.Traffic = append(service.Status.Traffic, servingv1.TrafficTarget{RevisionName: revision})
	}
	return service
}

// TestFollowRevision continues after an interruption without a gap and without repeated lines, until the Revision is deleted.
func TestFollowRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var queries []string
		f := &fakeServer{t: t, log: func(_ string, query map[string][]string) (string, time.Duration, int) {
			queries = append(queries, fmt.Sprint(query["sinceSeconds"], query["tailLines"]))
			switch len(queries) {
			case 1:
				return "[a] 1\n[b] 1\n[a] 2\n", 10 * time.Second, http.StatusOK
			case 2:
				return "", 0, http.StatusServiceUnavailable
			case 3:
				return "[a] 2\n[a] 3\n[a] 2\n[b] 1\n[b] 2\n[c] 1\n", time.Second, http.StatusOK
			}
			return "", 0, http.StatusNotFound
		}}
		l, out := f.logs(LogOptions{})
		if err := l.followRevision(t.Context(), "hello-1", time.Minute, 5); err != nil {
			t.Fatal(err)
		}
		if got, want := out.String(), "[a] 1\n[b] 1\n[a] 2\n[a] 3\n[a] 2\n[b] 2\n[c] 1\n"; got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
		// The second log is opened 11 seconds after the last line, the third a second later, each with an overlap of 3.
		if got, want := strings.Join(queries[:3], " "), "[60] [5] [14] [] [15] []"; got != want {
			t.Errorf("opened with sinceSeconds and tailLines %s, want %s", got, want)
		}
	})
}

// TestFollowRevisionErrors returns errors of the first request, and a lost permission later.
func TestFollowRevisionErrors(t *testing.T) {
	for name, codes := range map[string][]int{
		"unknown": {http.StatusNotFound}, "forbidden": {http.StatusForbidden}, "forbidden later": {http.StatusOK, http.StatusForbidden},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fakeServer{t: t, log: func(string, map[string][]string) (string, time.Duration, int) {
					code := codes[0]
					codes = codes[1:]
					return "", 0, code
				}}
				l, _ := f.logs(LogOptions{})
				if err := l.followRevision(t.Context(), "hello-1", 0, -1); err == nil {
					t.Error("no error")
				}
			})
		})
	}
}

// TestFollowService follows later Revisions, those without traffic too, until the Service is deleted.
func TestFollowService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		since := map[string]string{}
		f := &fakeServer{t: t, services: []*servingv1.Service{serviceWith("hello-1"), serviceWith("hello-1", "hello-2"), serviceWith("hello-2")}}
		f.log = func(revision string, query map[string][]string) (string, time.Duration, int) {
			since[revision] = fmt.Sprint(query["sinceSeconds"], query["tailLines"])
			return "[" + revision + "] begun\n", time.Hour, http.StatusOK
		}
		l, out := f.logs(LogOptions{Tail: 7})
		if err := l.FollowService(t.Context(), "hello"); err != nil {
			t.Fatal(err)
		}
		if got, want := out.String(), "[hello-1] begun\n[hello-2] begun\n"; got != want {
			t.Errorf("got:\n%swant:\n%s", got, want)
		}
		// Ten seconds pass before the second Revision; none of its lines was printed.
		if since["hello-1"] != "[] [7]" || since["hello-2"] != "[11] []" {
			t.Errorf("opened with sinceSeconds and tailLines %v", since)
		}
	})
}

// TestFollowMany bounds the followed Revisions, and keeps those with traffic.
func TestFollowMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := map[string]bool{}
		f := &fakeServer{t: t}
		for i := range 30 {
			f.services = append(f.services, serviceWith("first", fmt.Sprintf("hello-%d", i)))
		}
		f.log = func(revision string, _ map[string][]string) (string, time.Duration, int) {
			open[revision] = true
			return "", time.Hour, http.StatusOK
		}
		l, _ := f.logs(LogOptions{Tail: -1})
		follower := &serviceFollower{Logs: l, begun: time.Now(), end: func(err error) { t.Error(err) }}
		ctx, cancel := context.WithCancel(t.Context())
		for _, service := range f.services {
			follower.update(ctx, service)
			synctest.Wait()
		}
		follower.mu.Lock()
		if n := len(follower.followed); n != maxFollowed || follower.followed[0].name != "first" || follower.followed[n-1].name != "hello-29" {
			t.Errorf("%d are followed", n)
		}
		follower.mu.Unlock()
		if len(open) != 31 {
			t.Errorf("%d were followed, want 31", len(open))
		}
		cancel()
		follower.running.Wait()
	})
}

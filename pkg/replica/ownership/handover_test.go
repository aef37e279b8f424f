package ownership

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// TestFollow checks that keys are moved after each change of membership, and until that succeeds.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view := membership.NewView(membersOf("a", "a"))
		table := NewTable(view, identity)
		first := table.Current()
		began := time.Now()
		var moves []string
		results := []bool{false, true, true}
		stop, stopped := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(stopped)
			table.Follow(first, false, stop, func(before, after Owners[string]) bool {
				moves = append(moves, fmt.Sprintf("%s %d to %d", time.Since(began), len(before.set.Members()), len(after.set.Members())))
				moved := results[0]
				results = results[1:]
				return moved
			})
		}()
		<-time.After(5 * time.Second)
		view.Set(membersOf("a", "a", "b"))
		<-time.After(5 * time.Second)
		close(stop)
		<-stopped
		if diff := cmp.Diff([]string{"1s 1 to 1", "2s 1 to 1", "5s 1 to 2"}, moves); diff != "" {
			t.Errorf("moves (-want +got):\n%s", diff)
		}
	})
}

// A change between the first move and Follow is not missed.
func TestFollowAfterChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		view := membership.NewView(membersOf("a", "a"))
		table := NewTable(view, identity)
		before := table.Current()
		view.Set(membersOf("a", "a", "b"))
		stop := make(chan struct{})
		moved := make(chan bool, 1)
		go table.Follow(before, true, stop, func(Owners[string], Owners[string]) bool { moved <- true; return true })
		<-moved
		close(stop)
	})
}

// peers answers the calls of a replica.
type peers struct {
	failures int
	calls    []string
}

func (p *peers) RoundTrip(r *http.Request) (*http.Response, error) {
	p.calls = append(p.calls, r.Method+" "+r.URL.String())
	if p.failures > 0 {
		p.failures--
		return nil, errors.New("connection refused")
	}
	recorder := httptest.NewRecorder()
	recorder.WriteHeader(http.StatusNoContent)
	return recorder.Result(), nil
}

// TestReleased covers the replica that is notified of a released key, and the time of the attempts.
func TestReleased(t *testing.T) {
	for name, test := range map[string]struct {
		members  string
		failures int
		calls    int
		took     time.Duration
	}{
		"new owner":               {members: "b", calls: 1},
		"new owner not reachable": {members: "b", failures: 2, calls: 3, took: 2 * notifyTimeout},
		"new owner gone":          {members: "b", failures: 100, calls: notifications, took: notifications * notifyTimeout},
		"own again":               {members: "a"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := klog.NewContext(t.Context(), logr.Discard())
				p := &peers{failures: test.failures}
				h := NewHandover(ctx, NewTable(membership.NewView(membersOf("a", test.members)), identity), p, func(key string) string { return "/handover/" + key })
				began := time.Now()
				h.Released("k")
				h.running.Wait()
				if took := time.Since(began); took != test.took {
					t.Errorf("it took %s, want %s", took, test.took)
				}
				if want := slices.Repeat([]string{"POST https://b/handover/k"}, test.calls); !slices.Equal(p.calls, want) {
					t.Errorf("called %v, want %v", p.calls, want)
				}
				h.Close()
			})
		})
	}
}

// Close waits for one attempt, and cancels the rest.
func TestHandoverClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := klog.NewContext(t.Context(), logr.Discard())
		table := NewTable(membership.NewView(membersOf("a", "b")), identity)
		h := NewHandover(ctx, table, &peers{failures: 100}, verbatim)
		h.Released("k")
		began := time.Now()
		h.Close()
		if took := time.Since(began); took != notifyTimeout {
			t.Errorf("it took %s, want %s", took, notifyTimeout)
		}
		NewHandover(ctx, table, nil, verbatim).Released("k")
	})
}

func TestHandoverHandler(t *testing.T) {
	handler := HandoverHandler(func(path string) (string, bool) { return strings.CutPrefix(path, "/k/") },
		func(_ context.Context, key string) error {
			if key != "1" {
				return errors.New("no key")
			}
			return nil
		})
	for path, want := range map[string]int{"/k/1": http.StatusNoContent, "/k/2": http.StatusServiceUnavailable, "/x": http.StatusNotFound} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodPost, path, nil))
		if w.Code != want {
			t.Errorf("%s: %d, want %d", path, w.Code, want)
		}
	}
}

package chaos

import (
	"hash/fnv"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// sink is the subscriber of all events. Its paths are /<namespace>/<name>, and /<namespace>/<name>/dead for dead letters.
// It fails for some events by their ID, so that a run with the same seed has the same failures.
type sink struct {
	recorder *recorder
	url      string
	// down makes it answer 503 to all events.
	down atomic.Bool

	mu       sync.Mutex
	attempts map[string]int // guarded by mu; by path and ID
}

func newSink(t *testing.T, address string, r *recorder) *sink {
	t.Helper()
	number, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := port.ListenOn(net.JoinHostPort(address, strconv.Itoa(number)))
	if err != nil {
		t.Fatal(err)
	}
	s := &sink{recorder: r, url: "http://" + listener.Addr().String(), attempts: map[string]int{}}
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	go server.Serve(listener) //nolint:errcheck // it ends with http.ErrServerClosed
	t.Cleanup(func() { server.Close() })
	return s
}

// poisoned reports whether an event always fails at subscribers that reject some events.
func poisoned(id string) bool { return hash(id)%16 == 0 }

func hash(id string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(id)) // never fails
	return h.Sum32()
}

// ServeHTTP answers an event and records the attempt.
func (s *sink) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start, id := s.recorder.now(), r.Header.Get("Ce-Id")
	_, _ = io.Copy(io.Discard, r.Body) // the sender may disconnect
	path, dead := strings.CutSuffix(strings.TrimPrefix(r.URL.Path, "/"), "/dead")
	namespace, name, _ := strings.Cut(path, "/")
	s.mu.Lock()
	s.attempts[r.URL.Path+" "+id]++
	attempt := s.attempts[r.URL.Path+" "+id]
	s.mu.Unlock()

	random := hash(r.URL.Path + " " + id)
	if random%5 == 0 {
		<-time.After(time.Duration(random%40) * time.Millisecond)
	}
	rejects := !dead && (name == "dead-letter" || name == "ordered-dead" || name == "drop")
	ok := !s.down.Load()
	if rejects {
		ok = ok && !poisoned(id)
	} else if random%8 == 0 && attempt <= 2 {
		ok = false
	}
	s.recorder.origin("event at "+r.URL.Path, namespace, strings.TrimPrefix(r.Header.Get("Ce-Source"), "/"))
	end := s.recorder.now()
	s.recorder.record(func(h *history.History) {
		h.Attempts = append(h.Attempts, history.Attempt{Subscription: path, Dead: dead, ID: id, OK: ok, Start: start, End: end})
	})
	if !ok {
		if random%3 == 0 {
			panic(http.ErrAbortHandler) // closes the connection without a response
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusAccepted)
}

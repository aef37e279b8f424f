package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/test/chaos/history"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// aspects are the aspects of the service whose recovery is measured.
var aspects = []string{"writes answered", "events accepted", "requests answered", "everything Ready"}

const (
	// attemptLimit is the timeout of an operation.
	attemptLimit = 3 * time.Second
	// answerLimit is the timeout of a request to a Service. It is long, because requests wait during faults.
	answerLimit = time.Minute
	// canceledAfter is the timeout of some requests to a Service, which usually are canceled while the application handles them.
	canceledAfter = 15 * time.Millisecond
	// window is the time after which the load uses new objects, so that the search for a linearization stays short.
	window = 4 * time.Second
	// keys is the number of objects in a window.
	keys = 4

	writers, requesters, senders = 4, 2, 2
)

// load runs until its context is canceled.
type load struct {
	*site
	seed    uint64
	running sync.WaitGroup
	values  atomic.Uint64
	// stored are the names of the dead letters that were collected.
	stored sets.Set[string]
}

// each calls work with some pause until ctx is canceled.
func (l *load) each(ctx context.Context, pause time.Duration, work func()) {
	l.running.Go(func() {
		ticker := time.NewTicker(pause)
		defer ticker.Stop()
		for ctx.Err() == nil {
			work()
			select {
			case <-ticker.C:
			case <-ctx.Done():
			}
		}
	})
}

func (l *load) start(ctx context.Context) {
	for client := range writers {
		w := &writer{load: l, client: client, random: rand.New(rand.NewPCG(l.seed, uint64(client))), seen: map[string]uint64{}}
		l.each(ctx, 50*time.Millisecond, w.next)
	}
	for _, ns := range l.namespaces {
		for name, limit := range limits {
			for range requesters + int(limit) {
				client := l.requests()
				l.each(ctx, 40*time.Millisecond, func() { l.ask(context.WithoutCancel(ctx), client, ns, name, int(limit), answerLimit) })
			}
			client := l.requests()
			l.each(ctx, 100*time.Millisecond, func() { l.ask(context.WithoutCancel(ctx), client, ns, name, int(limit), canceledAfter) })
		}
		for _, kind := range []string{"Broker", "Channel"} {
			for i := range senders {
				s := &sender{load: l, namespace: ns, target: ns + "/" + kind, name: fmt.Sprintf("%s/%s/%d", ns, kind, i), client: l.events()}
				l.each(ctx, 100*time.Millisecond, s.next)
			}
		}
	}
	l.each(ctx, 500*time.Millisecond, func() {
		start := l.recorder.now()
		if unready, err := l.unready(ctx); err == nil && len(unready) == 0 {
			l.recorder.succeeded("everything Ready", start)
		}
	})
	l.each(ctx, 500*time.Millisecond, func() { l.count(ctx) })
	l.each(ctx, collectEvery, func() { _ = l.collectDeadLetters(ctx) }) // fails during faults
}

// count records the counters of dropped events.
func (l *load) count(ctx context.Context) {
	start := l.recorder.now()
	limited, cancel := context.WithTimeout(ctx, attemptLimit)
	defer cancel()
	processes, dropped, err := l.scrape(limited)
	end := l.recorder.now()
	if err == nil {
		l.recorder.record(func(h *history.History) {
			h.Scrapes = append(h.Scrapes, history.Scrape{Processes: processes, Dropped: dropped, Start: start, End: end})
		})
	}
}

// writer reads and writes objects: Triggers whose Broker does not exist, which change by the load and by their controller.
type writer struct {
	*load
	client int
	random *rand.Rand
	// seen are the last versions that this writer saw.
	seen map[string]uint64
}

// valueField is the field that holds the value of an object.
var valueField = []string{"spec", "filter", "attributes", "value"}

func (w *writer) next() {
	name := fmt.Sprintf("w%d-%d", w.recorder.now()/window, w.random.IntN(keys))
	verb := []history.Verb{
		history.Create, history.Create, history.Get, history.Get, history.Get,
		history.Update, history.Update, history.Patch, history.Patch, history.Delete,
	}[w.random.IntN(10)]
	w.do(name, verb)
}

// do executes and records an operation.
func (w *writer) do(name string, verb history.Verb) {
	kind := harness.KindOf("Trigger")
	op := history.Operation{Client: w.client, Key: w.objects + "/" + name, Verb: verb}
	u := kind.Object(w.objects, name)
	if verb != history.Get && verb != history.Delete {
		op.Value = strconv.FormatUint(w.values.Add(1), 10)
		u.Object["spec"].(map[string]any)["filter"] = map[string]any{"attributes": map[string]any{"value": op.Value}}
	}
	request := harness.Request{Path: kind.Path(w.objects, name)}
	switch verb {
	case history.Create:
		request.Method, request.Path, request.Body = http.MethodPost, kind.Collection(w.objects), u
	case history.Get:
		request.Method = http.MethodGet
	case history.Update:
		if op.Base = w.seen[op.Key]; op.Base == 0 {
			return
		}
		u.SetResourceVersion(strconv.FormatUint(op.Base, 10))
		request.Method, request.Body = http.MethodPut, u
	case history.Patch:
		request.Method, request.ContentType = http.MethodPatch, "application/merge-patch+json"
		request.Body = map[string]any{"spec": u.Object["spec"]}
	case history.Delete:
		request.Method = http.MethodDelete
	}
	// A request that was sent may finish when the load ends.
	ctx, cancel := context.WithTimeout(context.Background(), attemptLimit)
	defer cancel()
	op.Start = w.recorder.now()
	response, err := w.clients().Send(ctx, request)
	op.End = w.recorder.now()
	if errors.Is(err, syscall.ECONNREFUSED) {
		return // the request was not sent
	}
	op.Result = history.Unknown
	if err == nil {
		if op.Result, err = w.result(&op, response); err != nil {
			w.recorder.record(func(h *history.History) { h.Unready = append(h.Unready, err.Error()) })
		}
	}
	if op.Result == "" || op.Result == history.Unknown && verb == history.Get {
		return
	}
	if op.Result != history.Unknown && verb != history.Get {
		w.recorder.succeeded("writes answered", op.Start)
	}
	w.recorder.record(func(h *history.History) { h.Operations = append(h.Operations, op) })
}

// result sets the fields of an operation by its response, and returns its result, empty if it was not executed.
func (w *writer) result(op *history.Operation, response *harness.Response) (history.Result, error) {
	switch code := response.Code; {
	case code == http.StatusNotFound && strings.Contains(string(response.Body), `"name":`):
		return history.NotFound, nil
	case code == http.StatusConflict && strings.Contains(string(response.Body), "AlreadyExists"):
		return history.Exists, nil
	case code == http.StatusConflict:
		return history.Conflict, nil
	case code == http.StatusTooManyRequests:
		return "", nil
	case code/100 != 2:
		return history.Unknown, nil
	case op.Verb == history.Delete:
		return history.OK, nil
	}
	u := &unstructured.Unstructured{}
	if err := u.UnmarshalJSON(response.Body); err != nil {
		return history.Unknown, fmt.Errorf("response to %s of %s: %w", op.Verb, op.Key, err)
	}
	namespace, value, version, err := observed(u)
	if err != nil {
		return history.Unknown, err
	}
	w.recorder.origin("response", w.objects, namespace)
	op.Value, op.Version = value, version
	w.seen[op.Key] = version
	return history.OK, nil
}

// observed returns namespace, value and version of an object.
func observed(u *unstructured.Unstructured) (namespace, value string, version uint64, err error) {
	if value, _, err = unstructured.NestedString(u.Object, valueField...); err != nil {
		return "", "", 0, err
	}
	version, err = strconv.ParseUint(u.GetResourceVersion(), 10, 64)
	return u.GetNamespace(), value, version, err
}

// ask sends a request to a Service, and waits for it, at most for the duration within, also when the load ends.
func (l *load) ask(ctx context.Context, client *http.Client, namespace, name string, limit int, within time.Duration) {
	start := l.recorder.now()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, l.hosts[namespace+"/"+name]+"/concurrency?sleep=20ms", http.NoBody)
	if err != nil {
		panic(err) // the status has an invalid URL
	}
	response, err := client.Do(request)
	if err != nil {
		return
	}
	defer response.Body.Close()
	var report struct {
		Max    int
		Target string
	}
	if response.StatusCode != http.StatusOK || json.NewDecoder(response.Body).Decode(&report) != nil {
		return
	}
	l.recorder.succeeded("requests answered", start)
	l.recorder.origin("answer of "+name, namespace, report.Target)
	at := l.recorder.now()
	l.recorder.record(func(h *history.History) {
		h.Answers = append(h.Answers, history.Answer{Service: namespace + "/" + name, Limit: limit, Most: report.Max, At: at})
	})
}

// sender posts events, one at a time.
type sender struct {
	*load
	namespace, target, name string
	client                  *http.Client
	posted                  int
}

func (s *sender) next() {
	s.posted++
	p := history.Post{Sender: s.name, Target: s.target, ID: fmt.Sprintf("%s/%d", s.name, s.posted), Kind: []string{"even", "odd"}[s.posted%2]}
	request, err := http.NewRequest(http.MethodPost, s.targets[s.target], strings.NewReader("{}"))
	if err != nil {
		panic(err) // the status has an invalid URL
	}
	for name, value := range map[string]string{
		"Content-Type": "application/json", "Ce-Specversion": "1.0", "Ce-Id": p.ID, "Ce-Type": p.Kind, "Ce-Source": "/" + s.namespace,
		// In a Broker with several partitions, only events with one key are in order.
		"Ce-Partitionkey": s.name,
	} {
		request.Header.Set(name, value)
	}
	p.Start = s.recorder.now()
	response, err := s.client.Do(request)
	if err == nil {
		_, _ = io.Copy(io.Discard, response.Body) // the status was received
		response.Body.Close()
		p.Accepted = response.StatusCode == http.StatusAccepted
	}
	p.End = s.recorder.now()
	if p.Accepted {
		s.recorder.succeeded("events accepted", p.Start)
	}
	s.recorder.record(func(h *history.History) { h.Posts = append(h.Posts, p) })
}

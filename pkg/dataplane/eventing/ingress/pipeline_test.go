package ingress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

// owner is a replica that owns all streams. It accepts no event until open is closed.
type owner struct {
	*httptest.Server
	forwarder *Forwarder
	open      chan struct{}
	// accepted are the identifiers and data of the events, errs the errors of events by their identifier.
	mu       sync.Mutex
	accepted []string
	errs     map[string]error
	// requests are the first elements of the paths of its requests.
	requests []string
}

// startOwner starts an owner, which serves pipelines by a handler, nil for its own.
func startOwner(t *testing.T, pipelined http.Handler) *owner {
	t.Helper()
	o := &owner{open: make(chan struct{}), errs: map[string]error{}}
	handler := New(Options{Accept: o.accept, Exists: exists})
	if pipelined == nil {
		pipelined = handler.Pipelined()
	}
	mux := http.NewServeMux()
	for element, handler := range map[string]http.Handler{ForwardedElement: handler.Forwarded(), PipelineElement: pipelined} {
		mux.Handle("/"+element+"/", http.StripPrefix("/"+element, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			o.mu.Lock()
			o.requests = append(o.requests, element)
			o.mu.Unlock()
			handler.ServeHTTP(w, r)
		})))
	}
	o.Server = httptest.NewTLSServer(mux)
	t.Cleanup(o.Close)
	o.forwarder = &Forwarder{Transport: o.Client().Transport, Exists: exists}
	return o
}

func (o *owner) accept(ctx context.Context, _ eventing.Key, events []*event.Event) error {
	select {
	case <-o.open:
	case <-ctx.Done():
		return ctx.Err()
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range events {
		id, _ := e.Get(event.ID)
		if id == "panic" {
			panic(id)
		}
		if err := o.errs[id]; err != nil {
			return err
		}
		o.accepted = append(o.accepted, id+" "+string(e.Data))
	}
	return nil
}

// forward forwards an event.
func (o *owner) forward(ctx context.Context, id, data string) error {
	header := http.Header{"Ce-Specversion": {"1.0"}, "Ce-Id": {id}, "Ce-Source": {"/s"}, "Ce-Type": {"t"}, "Content-Type": {"text/plain"}}
	member := membership.Member{Name: "other", Address: strings.TrimPrefix(o.URL, "https://")}
	_, err := o.forwarder.attempt(ctx, member, http.MethodPost, orders, header, []byte(data))
	return err
}

// waiting waits until a number of requests are in flight and others wait.
func (o *owner) waiting(t *testing.T, inFlight, waiting int) {
	t.Helper()
	for {
		o.forwarder.pipelines.mu.Lock()
		var line pipeline
		for _, l := range o.forwarder.pipelines.all {
			line = *l
		}
		o.forwarder.pipelines.mu.Unlock()
		if line.inFlight == inFlight && len(line.waiting) == waiting {
			return
		}
		select {
		case <-time.After(time.Millisecond):
		case <-t.Context().Done():
			t.Fatalf("%d requests are in flight and %d wait, want %d and %d", line.inFlight, len(line.waiting), inFlight, waiting)
		}
	}
}

// TestPipeline checks that requests that cannot be sent at once are sent together, and that each gets its own response.
func TestPipeline(t *testing.T) {
	const all = concurrentForwards + 20
	o := startOwner(t, nil)
	o.errs["7"] = eventing.ErrFull
	o.errs["9"] = eventing.ErrTooLarge
	errs := make([]error, all)
	var want []string
	var sending sync.WaitGroup
	for i := range all {
		id, data := fmt.Sprint(i), strings.Repeat("x", 100*i)
		if o.errs[id] == nil && id != "11" {
			want = append(want, id+" "+data)
		}
		if id == "11" {
			id = "panic"
		}
		sending.Go(func() { errs[i] = o.forward(t.Context(), id, data) })
		o.waiting(t, min(i+1, concurrentForwards), max(0, i+1-concurrentForwards))
	}
	close(o.open)
	sending.Wait()
	o.waiting(t, 0, 0)

	slices.Sort(want)
	slices.Sort(o.accepted)
	if diff := cmp.Diff(want, o.accepted); diff != "" {
		t.Errorf("accepted (-want +got):\n%s", diff)
	}
	// The request whose response came second found none that waited.
	if got := slices.Compact(slices.Sorted(slices.Values(o.requests))); len(o.requests) != concurrentForwards+1 || len(got) != 2 {
		t.Errorf("the owner received %v", o.requests)
	}
	for i, err := range errs {
		status := 0
		if refusal := (*Refusal)(nil); errors.As(err, &refusal) {
			status = refusal.Status
		}
		want := map[int]int{7: 503, 9: 413, 11: 500}[i]
		if status != want || (err == nil) != (want == 0) {
			t.Errorf("event %d: error %v, want status %d", i, err, want)
		}
	}
	if refusal := (*Refusal)(nil); !errors.As(errs[7], &refusal) || refusal.RetryAfter != fullRetryAfter {
		t.Errorf("the refusal of event 7 is %+v, want one with a delay of %s", refusal, fullRetryAfter)
	}
}

// TestPipelineRefused checks that requests are sent alone if the owner accepts no pipelines, as a replica of an earlier version.
func TestPipelineRefused(t *testing.T) {
	for name, pipelined := range map[string]http.Handler{
		"not found": http.NotFoundHandler(),
		"not a pipeline": http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, "something else")
		}),
	} {
		t.Run(name, func(t *testing.T) {
			o := startOwner(t, pipelined)
			if errs := o.forwardMany(t, 10); len(errs) > 0 {
				t.Errorf("errors: %v", errs)
			}
			if len(o.accepted) != 10 {
				t.Errorf("%d events were accepted, want 10", len(o.accepted))
			}
		})
	}
}

// forwardMany forwards a number of events at the same time, most of them together, and returns the errors.
func (o *owner) forwardMany(t *testing.T, n int) (failed []error) {
	t.Helper()
	errs := make([]error, n)
	var sending sync.WaitGroup
	for i := range n {
		sending.Go(func() { errs[i] = o.forward(t.Context(), fmt.Sprint(i), "x") })
	}
	o.waiting(t, concurrentForwards, n-concurrentForwards)
	close(o.open)
	sending.Wait()
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

// TestPipelineInterrupted checks that the requests whose responses do not arrive fail with status 503, and no others.
func TestPipelineInterrupted(t *testing.T) {
	o := startOwner(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", pipelineType)
		const accepted = "HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"
		io.WriteString(w, accepted+accepted+"HTTP/1.1 202 Acc") //nolint:errcheck // the client reads it
	}))
	errs := o.forwardMany(t, 10)
	if len(errs) != 10-concurrentForwards-2 {
		t.Errorf("%d events failed, want %d", len(errs), 10-concurrentForwards-2)
	}
	for _, err := range errs {
		if refusal := (*Refusal)(nil); !errors.As(err, &refusal) || refusal.Status != http.StatusServiceUnavailable {
			t.Errorf("error %v, want a refusal with status 503", err)
		}
	}
}

// TestPipelineWithdrawn checks that a waiting request is not sent after its sender is gone.
func TestPipelineWithdrawn(t *testing.T) {
	o := startOwner(t, nil)
	var sending sync.WaitGroup
	for i := range concurrentForwards {
		sending.Go(func() { o.forward(t.Context(), fmt.Sprint(i), "") }) //nolint:errcheck // checked below
	}
	o.waiting(t, concurrentForwards, 0)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error)
	go func() { gone <- o.forward(ctx, "gone", "") }()
	o.waiting(t, concurrentForwards, 1)
	cancel()
	if err := <-gone; err == nil {
		t.Error("a request that was not sent has no error")
	}
	close(o.open)
	sending.Wait()
	if len(o.accepted) != concurrentForwards {
		t.Errorf("accepted %v, want the events before", o.accepted)
	}
}

// TestPipelineLimits checks that large requests are sent alone, and that the owner refuses other content.
func TestPipelineLimits(t *testing.T) {
	o := startOwner(t, nil)
	close(o.open)
	for name, test := range map[string]struct {
		head, body int
		want       bool
	}{
		"small": {100, maxPipelinedBody, true}, "a large body": {100, maxPipelinedBody + 1, false}, "a large head": {maxPipelinedHead, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, o.URL+"/events/default/orders", nil, "ce-big", strings.Repeat("x", test.head))
			if got := (&forwarding{request: r, body: make([]byte, test.body)}).pipelineable(); got != test.want {
				t.Errorf("pipelineable: %t, want %t", got, test.want)
			}
		})
	}
	one := "POST /default/orders HTTP/1.1\r\nHost: x\r\nCe-Specversion: 1.0\r\nCe-Id: 1\r\nCe-Source: /s\r\nCe-Type: t\r\nContent-Length: 0\r\n\r\n"
	for name, test := range map[string]struct {
		path, media, body string
		code              int
	}{
		"a pipeline":          {"/default/orders", pipelineType, one + one, 200},
		"another media type":  {"/default/orders", "text/plain", one, 400},
		"too many requests":   {"/default/orders", pipelineType, strings.Repeat(one, maxPipelined+1), 400},
		"too large":           {"/default/orders", pipelineType, strings.Repeat("x", maxPipeline+1), 400},
		"not HTTP":            {"/default/orders", pipelineType, "x", 400},
		"an incomplete body":  {"/default/orders", pipelineType, one[:len(one)-5] + "9\r\n\r\nx", 400},
		"no stream":           {"/default", pipelineType, one, 404},
		"an incomplete head":  {"/default/orders", pipelineType, one[:20], 400},
		"an empty pipeline":   {"/default/orders", pipelineType, "", 200},
		"another HTTP method": {"/default/orders", pipelineType, "GET /default/orders HTTP/1.1\r\nHost: x\r\n\r\n", 200},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, o.URL+"/"+PipelineElement+test.path, bytes.NewReader([]byte(test.body)))
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Content-Type", test.media)
			res, err := o.Client().Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer res.Body.Close()
			if res.StatusCode != test.code {
				t.Errorf("status %d, want %d", res.StatusCode, test.code)
			}
		})
	}
}

package eventing

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	// sinkVariable is the environment variable that makes the test binary the process that receives events, at an address of this machine.
	sinkVariable = "EVENTING_BENCH_SINK"
	// maxSubscribers is the number of subscribers, at the paths /0, /1, ...
	maxSubscribers = 10
	// maxEvents is the maximum number of events in a run.
	maxEvents = 1 << 24
	// Headers of events for latency measurements, in nanoseconds since 1970: the time when an event was sent, and when it
	// should have been.
	sentHeader, dueHeader = "Ce-Sentnanos", "Ce-Duenanos"
)

// reception is the result of one run. The sink discards it when the next one starts.
type reception struct {
	run         string
	subscribers [maxSubscribers]struct {
		requests, distinct atomic.Int64
		seen               []atomic.Uint64 // a bit for each event
	}
	stray atomic.Int64 // requests at other paths

	mu        sync.Mutex
	sinceSent []time.Duration // guarded by mu
	sinceDue  []time.Duration // guarded by mu
}

func newReception(run string) *reception {
	r := &reception{run: run}
	for i := range r.subscribers {
		r.subscribers[i].seen = make([]atomic.Uint64, maxEvents/64)
	}
	return r
}

// receive counts the event in a request.
func (r *reception) receive(request *http.Request, now time.Time) {
	subscriber, err := strconv.Atoi(request.URL.Path[1:])
	run, number, _ := strings.Cut(request.Header.Get("Ce-Id"), "-")
	event, notANumber := strconv.Atoi(number)
	if err != nil || subscriber >= maxSubscribers {
		r.stray.Add(1)
		return
	}
	// Some events have no response when sending ends; the broker may deliver them in the next run.
	if notANumber != nil || run != r.run || event >= maxEvents {
		return
	}
	s := &r.subscribers[subscriber]
	s.requests.Add(1)
	if bit := uint64(1) << (event % 64); s.seen[event/64].Or(bit)&bit == 0 {
		s.distinct.Add(1)
	}
	sent, err := strconv.ParseInt(request.Header.Get(sentHeader), 10, 64)
	if err != nil {
		return
	}
	due, err := strconv.ParseInt(request.Header.Get(dueHeader), 10, 64)
	if err != nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sinceSent = append(r.sinceSent, time.Duration(now.UnixNano()-sent))
	r.sinceDue = append(r.sinceDue, time.Duration(now.UnixNano()-due))
}

// received are the figures of a run.
type received struct {
	// Requests and Distinct count requests and distinct events by subscriber.
	Requests, Distinct [maxSubscribers]int64
	// Stray counts unexpected requests.
	Stray int64
	// SinceSent and SinceDue are the times from sending, and from the scheduled time of sending, until arrival.
	SinceSent, SinceDue percentiles
}

// total returns the number of distinct events, summed over all subscribers.
func (r *received) total() (n int64) {
	for _, distinct := range r.Distinct {
		n += distinct
	}
	return n
}

// duplicates returns the number of requests with events that had arrived before.
func (r *received) duplicates() (n int64) {
	for _, requests := range r.Requests {
		n += requests
	}
	return n - r.total()
}

// percentiles of durations.
type percentiles struct{ P50, P99 time.Duration }

func percentilesOf(values []time.Duration) percentiles {
	if len(values) == 0 {
		return percentiles{}
	}
	slices.Sort(values)
	return percentiles{P50: values[len(values)/2], P99: values[len(values)*99/100]}
}

func (r *reception) figures() *received {
	f := &received{Stray: r.stray.Load()}
	for i := range r.subscribers {
		f.Requests[i], f.Distinct[i] = r.subscribers[i].requests.Load(), r.subscribers[i].distinct.Load()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f.SinceSent, f.SinceDue = percentilesOf(slices.Clone(r.sinceSent)), percentilesOf(slices.Clone(r.sinceDue))
	return f
}

// serveSink receives events until the process is killed. GET /?run=RUN starts a run, GET / returns its figures so far.
func serveSink() error {
	listener, err := net.Listen("tcp", net.JoinHostPort(os.Getenv(sinkVariable), "0"))
	if err != nil {
		return err
	}
	var current atomic.Pointer[reception]
	current.Store(newReception(""))
	fmt.Printf("listening on %s\n", listener.Addr())
	return http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		if r.Method == http.MethodPost {
			_, _ = io.Copy(io.Discard, r.Body) // truncated events are ignored
			current.Load().receive(r, now)
			w.WriteHeader(http.StatusAccepted)
			return
		}
		if run := r.URL.Query().Get("run"); run != "" {
			current.Store(newReception(run))
		}
		if err := json.NewEncoder(w).Encode(current.Load().figures()); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}))
}

// sinkProcess receives events in a separate process.
type sinkProcess struct {
	*harness.Process
	// url is its URL, without a path.
	url string
	// runs counts the runs.
	runs int
}

// startSink starts the process on a free port of an address of this machine.
func startSink(address string) (*sinkProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	process, err := harness.StartProcess([]string{sinkVariable + "=" + address}, self)
	if err != nil {
		return nil, err
	}
	match, err := process.WaitForOutput(regexp.MustCompile(`listening on (\S+)`))
	if err != nil {
		process.Kill()
		return nil, err
	}
	return &sinkProcess{Process: process, url: "http://" + match[1]}, nil
}

// at returns the URL of a subscriber.
func (p *sinkProcess) at(subscriber int) string { return fmt.Sprintf("%s/%d", p.url, subscriber) }

// begin starts a run and returns its name, the prefix of its event IDs.
func (p *sinkProcess) begin(b *testing.B) string {
	b.Helper()
	p.runs++
	run := "r" + strconv.Itoa(p.runs)
	p.get(b, "/?run="+run)
	return run
}

// received returns the figures of the run so far.
func (p *sinkProcess) received(b *testing.B) *received {
	b.Helper()
	return p.get(b, "/")
}

func (p *sinkProcess) get(b *testing.B, path string) *received {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, p.url+path, nil)
	if err != nil {
		b.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	var figures received
	if err := json.NewDecoder(response.Body).Decode(&figures); err != nil {
		b.Fatal(err)
	}
	return &figures
}

// drained waits until each of the first subscribers has received as many events as were accepted.
func (p *sinkProcess) drained(b *testing.B, subscribers int, accepted int64) *received {
	b.Helper()
	// A backlog of a whole window may remain.
	ctx, cancel := context.WithTimeout(b.Context(), 10*window)
	defer cancel()
	var figures *received
	err := harness.Poll(ctx, func() error {
		figures = p.received(b)
		for i := range subscribers {
			if figures.Distinct[i] < accepted {
				return fmt.Errorf("accepted %d, received %d", accepted, figures.Distinct)
			}
		}
		return nil
	})
	if err != nil {
		b.Fatalf("waiting until all accepted events are delivered: %v", err)
	}
	if figures.Stray > 0 {
		b.Fatalf("%d unexpected requests arrived", figures.Stray)
	}
	return figures
}

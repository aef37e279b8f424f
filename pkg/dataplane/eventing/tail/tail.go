// Package tail shows the events that streams accept, live, to a few clients.
//
// Offering an event to a Hub never waits, and costs one load of a number while nobody looks. Otherwise the event is copied into a bounded
// queue of its stream, or dropped and counted if that is full. A goroutine for each namespace with tails evaluates their filters, for a bounded
// part of the time, and passes the events that match to the bounded buffer of each tail.
package tail

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/filter"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// MaxOfNamespace bounds the tails of the streams of a namespace, maxTails all tails.
	MaxOfNamespace = 8
	maxTails       = 64
	// MaxData bounds the data of an event that is shown, in bytes.
	MaxData = 64 << 10
	// maxQueued bounds the events of a stream that wait for the filters, and maxBuffered the lines that wait for the client of a tail, in bytes.
	maxQueued, maxBuffered = 1 << 20, 1 << 20
	// maxLines bounds the number of lines that wait for the client.
	maxLines = 1024
	// maxOffered bounds the events of a stream that are copied for the filters, by second.
	maxOffered = 5000
	// MaxRate bounds the events that a tail shows, by second.
	MaxRate = 100
	// idleFactor is how much longer than it evaluated filters the goroutine of a namespace pauses then, for at most longestPause.
	idleFactor   = 7
	longestPause = 500 * time.Millisecond
	// reportInterval is the time between reports of dropped events.
	reportInterval = time.Second
)

// Errors of Open.
var (
	// ErrTooMany means that the namespace or this replica has too many tails.
	ErrTooMany = errors.New("the limit of this replica is reached")
	// ErrStopped means that the Hub shows nothing anymore.
	ErrStopped = errors.New("the server is shutting down")
)

// Options select the events of a tail.
type Options struct {
	// Filter passes the events that are shown. Nil passes all.
	Filter *filter.Filter
	// Data adds the data of events.
	Data bool
}

// Hub has the tails of this replica. Its methods may be called concurrently. The zero value is ready to use; a nil Hub shows nothing.
type Hub struct {
	// open is the number of tails.
	open atomic.Int32
	// taps has a *tap for the eventing.Key of each stream with tails.
	taps sync.Map

	// mu guards the fields below, and the changes of taps.
	mu sync.Mutex
	// namespaces have tails.
	namespaces map[string]*tenant
	stopped    bool
}

// tenant is a namespace with tails, whose goroutine ends with the last one.
type tenant struct {
	tails int
	// wake tells the goroutine of queued events, done ends it.
	wake chan struct{}
	done chan struct{}
}

// tap is a stream with tails.
type tap struct {
	tenant *tenant
	// offered bounds the rate of copies.
	offered *rate.Limiter

	// mu guards the fields below.
	mu sync.Mutex
	// tails are replaced, never changed.
	tails []*Tail
	data  bool
	queue []queued
	// buffer has the encoded events of queue.
	buffer []byte
}

// queued is an event that waits for the filters. It ends at end in the buffer.
type queued struct {
	at  time.Time
	end int
	// cut is true if the data is too large to be shown.
	cut bool
}

// Tail is one client of a stream.
type Tail struct {
	hub     *Hub
	stream  eventing.Key
	options Options
	rate    *rate.Limiter
	lines   chan []byte
	// buffered is the size of lines.
	buffered atomic.Int64
	dropped  drops
	// ended is closed when the stream ends for this replica.
	ended chan struct{}
	close sync.Once
}

// drops are the numbers of events that were not shown since the last report, by reason.
type drops struct{ overloaded, expensive, limited, slow atomic.Int64 }

// Open returns a tail of the events that a stream accepts from now on. Close ends it. Errors are ErrTooMany and ErrStopped.
func (h *Hub) Open(stream eventing.Key, options Options) (*Tail, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.stopped {
		return nil, ErrStopped
	}
	ns := h.namespaces[stream.Namespace]
	switch {
	case ns != nil && ns.tails >= MaxOfNamespace:
		return nil, fmt.Errorf("%w: %d tails of the namespace", ErrTooMany, ns.tails)
	case h.open.Load() >= maxTails:
		return nil, fmt.Errorf("%w: %d tails", ErrTooMany, h.open.Load())
	case ns == nil:
		ns = &tenant{wake: make(chan struct{}, 1), done: make(chan struct{})}
		if h.namespaces == nil {
			h.namespaces = map[string]*tenant{}
		}
		h.namespaces[stream.Namespace] = ns
		go h.run(ns)
	}
	t := &Tail{
		hub: h, stream: stream, options: options, rate: rate.NewLimiter(MaxRate, MaxRate), lines: make(chan []byte, maxLines), ended: make(chan struct{}),
	}
	p := h.tap(stream)
	if p == nil {
		p = &tap{tenant: ns, offered: rate.NewLimiter(maxOffered, maxOffered)}
	}
	p.mu.Lock()
	p.tails = append(p.tails[:len(p.tails):len(p.tails)], t)
	p.data = p.data || options.Data
	p.mu.Unlock()
	h.taps.Store(stream, p)
	ns.tails++
	h.open.Add(1)
	return t, nil
}

// tap returns the tap of a stream, or nil.
func (h *Hub) tap(stream eventing.Key) *tap {
	if found, ok := h.taps.Load(stream); ok {
		return found.(*tap)
	}
	return nil
}

// Close ends a tail.
func (t *Tail) Close() {
	t.close.Do(func() {
		h := t.hub
		h.mu.Lock()
		defer h.mu.Unlock()
		h.open.Add(-1)
		if ns := h.namespaces[t.stream.Namespace]; ns != nil {
			if ns.tails--; ns.tails == 0 {
				close(ns.done)
				delete(h.namespaces, t.stream.Namespace)
			}
		}
		if p := h.tap(t.stream); p != nil && p.without(t) {
			h.taps.Delete(t.stream)
		}
	})
}

// without removes a tail, and reports whether none is left.
func (p *tap) without(t *Tail) (empty bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var rest []*Tail
	p.data = false
	for _, other := range p.tails {
		if other != t {
			rest = append(rest, other)
			p.data = p.data || other.options.Data
		}
	}
	p.tails = rest
	return len(rest) == 0
}

// End ends the tails of a stream, because it was deleted or another replica owns it now.
func (h *Hub) End(stream eventing.Key) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if p := h.tap(stream); p != nil {
		p.end()
		h.taps.Delete(stream)
	}
}

// Stop ends all tails, and refuses new ones.
func (h *Hub) Stop() {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.stopped = true
	h.taps.Range(func(stream, p any) bool {
		p.(*tap).end()
		h.taps.Delete(stream)
		return true
	})
}

func (p *tap) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, t := range p.tails {
		close(t.ended)
	}
	p.tails = nil
}

// Offer shows an event that a stream has accepted to its tails. It copies what it needs, and never waits for filters or clients.
func (h *Hub) Offer(stream eventing.Key, e *event.Event, at time.Time) {
	if h == nil || h.open.Load() == 0 {
		return
	}
	p := h.tap(stream)
	if p == nil {
		return
	}
	if p.offer(e, at) {
		select {
		case p.tenant.wake <- struct{}{}:
		default:
		}
	}
}

// offer queues an event, and reports whether it is the first one.
func (p *tap) offer(e *event.Event, at time.Time) (first bool) {
	allowed := p.offered.Allow()
	p.mu.Lock()
	defer p.mu.Unlock()
	shown := *e
	shown.Headers = nil
	cut := len(e.Data) > MaxData
	if !p.data || cut {
		shown.Data = nil
	}
	if !allowed || len(p.buffer)+shown.Size() > maxQueued {
		for _, t := range p.tails {
			t.dropped.overloaded.Add(1)
		}
		return false
	}
	p.buffer = shown.Append(p.buffer)
	p.queue = append(p.queue, queued{at: at, end: len(p.buffer), cut: cut})
	return len(p.queue) == 1
}

// take removes and returns the queued events.
func (p *tap) take() (queue []queued, buffer []byte, tails []*Tail) {
	p.mu.Lock()
	defer p.mu.Unlock()
	queue, buffer, tails = p.queue, p.buffer, p.tails
	p.queue, p.buffer = nil, nil
	return queue, buffer, tails
}

// run evaluates the filters of a namespace until its last tail is closed.
func (h *Hub) run(ns *tenant) {
	pause := time.NewTimer(0)
	<-pause.C
	for {
		select {
		case <-ns.wake:
		case <-ns.done:
			return
		}
		start := time.Now()
		h.taps.Range(func(_, found any) bool {
			if p := found.(*tap); p.tenant == ns {
				p.show()
			}
			return true
		})
		pause.Reset(min(idleFactor*time.Since(start), longestPause))
		select {
		case <-pause.C:
		case <-ns.done:
			return
		}
	}
}

// show passes the queued events to the tails whose filters they pass.
func (p *tap) show() {
	queue, buffer, tails := p.take()
	start := 0
	budgets := make([]*filter.Budget, len(tails))
	for i := range budgets {
		budgets[i] = filter.NewBudget(context.Background())
	}
	for _, q := range queue {
		e, err := event.Decode(buffer[start:q.end])
		start = q.end
		if err != nil {
			continue
		}
		for i, t := range tails {
			t.show(budgets[i], e, q)
		}
	}
}

// show passes an event to the client if it passes the filter.
func (t *Tail) show(budget *filter.Budget, e *event.Event, q queued) {
	if t.options.Filter != nil {
		switch matched, ok := t.options.Filter.Match(budget, e); {
		case !ok:
			t.dropped.expensive.Add(1)
			return
		case !matched:
			return
		}
	}
	if !t.rate.Allow() {
		t.dropped.limited.Add(1)
		return
	}
	if t.buffered.Load() > maxBuffered {
		t.dropped.slow.Add(1)
		return
	}
	line, err := t.line(e, q)
	if err != nil {
		return
	}
	select {
	case t.lines <- line:
		t.buffered.Add(int64(len(line)))
	default:
		t.dropped.slow.Add(1)
	}
}

// shown is a line with an event.
type shown struct {
	AcceptedAt time.Time `json:"acceptedAt"`
	// Event is the event in the JSON format of CloudEvents.
	Event json.RawMessage `json:"event"`
	// DataOmitted is true if the event has more than MaxData bytes of data.
	DataOmitted bool `json:"dataOmitted,omitempty"`
}

func (t *Tail) line(e *event.Event, q queued) ([]byte, error) {
	// The attribute belongs to Brokers.
	e = e.With(event.Attribute{Name: event.TTL})
	if !t.options.Data {
		e.Data = nil
	}
	body, err := e.MarshalStructured()
	if err != nil {
		return nil, err
	}
	return encode(shown{AcceptedAt: q.at.UTC(), Event: body, DataOmitted: q.cut && t.options.Data})
}

// encode returns a value as a line of JSON.
func encode(value any) ([]byte, error) {
	line, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode line of a tail: %w", err)
	}
	return append(line, '\n'), nil
}

// Dropped is a line that reports how many events were not shown since the last report, by reason.
type Dropped struct {
	Dropped struct {
		// Overloaded events came faster than they can be looked at.
		Overloaded int64 `json:"overloaded,omitempty"`
		// FilterTooExpensive events exceeded the budget of the filter.
		FilterTooExpensive int64 `json:"filterTooExpensive,omitempty"`
		// RateLimited events exceeded MaxRate, SlowClient events did not fit in the buffer.
		RateLimited int64 `json:"rateLimited,omitempty"`
		SlowClient  int64 `json:"slowClient,omitempty"`
	} `json:"dropped"`
}

// report returns the line about events that were dropped since the last one, or nil without any.
func (t *Tail) report() ([]byte, error) {
	var r Dropped
	d := &r.Dropped
	d.Overloaded, d.FilterTooExpensive = t.dropped.overloaded.Swap(0), t.dropped.expensive.Swap(0)
	d.RateLimited, d.SlowClient = t.dropped.limited.Swap(0), t.dropped.slow.Swap(0)
	if r == (Dropped{}) {
		return nil, nil
	}
	return encode(r)
}

// Copy writes the lines of the tail to w until ctx or the stream ends, and returns nil then. It flushes whenever no line waits.
func (t *Tail) Copy(ctx context.Context, w io.Writer, flush func() error) error {
	reports := time.NewTicker(reportInterval)
	defer reports.Stop()
	for {
		var line []byte
		var err error
		select {
		case line = <-t.lines:
			t.buffered.Add(-int64(len(line)))
		case <-reports.C:
			line, err = t.report()
		case <-t.ended:
			return nil
		case <-ctx.Done():
			return nil
		}
		if err == nil && len(line) > 0 {
			_, err = w.Write(line)
		}
		if err == nil && len(line) > 0 && len(t.lines) == 0 {
			err = flush()
		}
		if err != nil {
			return fmt.Errorf("write line of a tail: %w", err)
		}
	}
}

package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/test/port"
)

// Sink is an HTTP server that accepts CloudEvents, with a separate Subscriber for each path.
type Sink struct {
	address string

	mu          sync.Mutex
	server      *http.Server           // guarded by mu; nil while the sink is stopped
	subscribers map[string]*Subscriber // guarded by mu; by path
}

// NewSink starts a sink on a free port of the loopback address; it stops when the test ends.
func NewSink(t testing.TB) *Sink {
	t.Helper()
	return NewSinkOn(t, "127.0.0.1")
}

// NewSinkOn is like NewSink on another address of this machine, which Pods can reach.
func NewSinkOn(t testing.TB, address string) *Sink {
	t.Helper()
	number, err := port.Stable()
	if err != nil {
		t.Fatal(err)
	}
	s := &Sink{address: net.JoinHostPort(address, strconv.Itoa(number)), subscribers: map[string]*Subscriber{}}
	s.Start(t)
	t.Cleanup(s.Stop)
	return s
}

// Start restarts a stopped sink on the same port.
func (s *Sink) Start(t testing.TB) {
	t.Helper()
	listener, err := port.ListenOn(s.address)
	if err != nil {
		t.Fatal(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.server = &http.Server{Handler: s, ReadHeaderTimeout: Patience}
	go func(server *http.Server) { _ = server.Serve(listener) }(s.server) // ends with http.ErrServerClosed
}

// Stop closes the port and all connections; requests in flight get no response.
func (s *Sink) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.server != nil {
		s.server.Close()
		s.server = nil
	}
}

// At returns the subscriber of a path such as "/orders".
func (s *Sink) At(path string) *Subscriber {
	s.mu.Lock()
	defer s.mu.Unlock()
	subscriber := s.subscribers[path]
	if subscriber == nil {
		subscriber = &Subscriber{
			URL: "http://" + s.address + path, attempts: map[string]int{}, received: map[string]int{}, changed: make(chan struct{}),
		}
		s.subscribers[path] = subscriber
	}
	return subscriber
}

var _ http.Handler = &Sink{}

// ServeHTTP passes a request to the subscriber of its path.
func (s *Sink) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.At(r.URL.Path).serve(w, r) }

// Delivery is a request with an event that a Subscriber received.
type Delivery struct {
	// ID is the event's ID, from the header or, in structured mode, from the body.
	ID string
	// Attempt counts the requests with this event, from 1.
	Attempt int
	Header  http.Header
	Body    []byte
	// Arrived is the time when the request had been read.
	Arrived time.Time
}

// Answer is the response of a Subscriber to a delivery. The zero value is a 202.
type Answer struct {
	// Code is the status; 0 means 202.
	Code   int
	Header http.Header
	Body   string
	// Delay is the delay before the response.
	Delay time.Duration
	// Drop closes the connection, after Delay, instead of responding.
	Drop bool
}

// succeeds reports whether the response acknowledges the event.
func (a *Answer) succeeds() bool { return !a.Drop && (a.Code == 0 || a.Code/100 == 2) }

// keptDeliveries is the number of deliveries, from the first, that a Subscriber records with header and body.
const keptDeliveries = 1000

// Subscriber records the events of one path of a Sink. An event is received once a request with it gets a 2xx response; other
// requests with it only count as attempts.
type Subscriber struct {
	// URL is the address.
	URL string

	behaviour atomic.Pointer[func(*Delivery) Answer]

	mu         sync.Mutex
	attempts   map[string]int // guarded by mu; requests by id
	received   map[string]int // guarded by mu; successful requests by id
	requests   int            // guarded by mu; all requests
	deliveries []Delivery     // guarded by mu; the first ones
	waits      []*arrival     // guarded by mu
	changed    chan struct{}  // guarded by mu; closed and replaced when a request arrives
}

// arrival is a set of events that a test waits for.
type arrival struct {
	missing map[string]bool // ids that have not been received
	count   int             // the number of different ids that must have been received
	done    chan struct{}
}

// Answer sets the function that determines responses. It is called concurrently; nil responds with 202 to
// all requests.
func (s *Subscriber) Answer(behaviour func(*Delivery) Answer) {
	if behaviour == nil {
		s.behaviour.Store(nil)
		return
	}
	s.behaviour.Store(&behaviour)
}

// AnswerCode responds to all requests with one status.
func (s *Subscriber) AnswerCode(code int) {
	s.Answer(func(*Delivery) Answer { return Answer{Code: code} })
}

func (s *Subscriber) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	d := &Delivery{ID: eventID(r.Header, body), Header: r.Header, Body: body, Arrived: time.Now()}
	s.attempted(d)
	var answer Answer
	if behaviour := s.behaviour.Load(); behaviour != nil {
		answer = (*behaviour)(d)
	}
	if answer.Delay > 0 {
		select {
		case <-time.After(answer.Delay):
		case <-r.Context().Done():
			panic(http.ErrAbortHandler)
		}
	}
	if answer.succeeds() {
		s.receive(d.ID)
	}
	if answer.Drop {
		panic(http.ErrAbortHandler)
	}
	maps.Copy(w.Header(), answer.Header)
	if answer.Code == 0 {
		answer.Code = http.StatusAccepted
	}
	w.WriteHeader(answer.Code)
	_, _ = io.WriteString(w, answer.Body) // fails only if the sender disconnected
}

// eventID returns the ID of an event, empty if the request contains no event.
func eventID(header http.Header, body []byte) string {
	if !strings.HasPrefix(header.Get("Content-Type"), "application/cloudevents+json") {
		return header.Get("Ce-Id")
	}
	var event struct{ ID string }
	_ = json.NewDecoder(bytes.NewReader(body)).Decode(&event) // not an event if it fails
	return event.ID
}

func (s *Subscriber) attempted(d *Delivery) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests++
	s.attempts[d.ID]++
	d.Attempt = s.attempts[d.ID]
	if len(s.deliveries) < keptDeliveries {
		s.deliveries = append(s.deliveries, *d)
	}
	close(s.changed)
	s.changed = make(chan struct{})
}

func (s *Subscriber) receive(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.received[id]++
	left := s.waits[:0]
	for _, w := range s.waits {
		delete(w.missing, id)
		if len(w.missing) == 0 && len(s.received) >= w.count {
			close(w.done)
		} else {
			left = append(left, w)
		}
	}
	s.waits = left
}

// Attempts returns the number of requests by event.
func (s *Subscriber) Attempts() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.attempts)
}

// Requests returns the number of requests, including requests without an event.
func (s *Subscriber) Requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requests
}

// Received returns the number of times that each event was received, more than one for duplicates.
func (s *Subscriber) Received() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.received)
}

// Deliveries returns the first thousand requests in order of arrival.
func (s *Subscriber) Deliveries() []Delivery {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.deliveries[:len(s.deliveries):len(s.deliveries)]
}

// Await waits until count different events have been received.
func (s *Subscriber) Await(ctx context.Context, count int) error {
	return s.await(ctx, &arrival{count: count})
}

// AwaitAll waits until all of the given events have been received.
func (s *Subscriber) AwaitAll(ctx context.Context, ids []string) error {
	missing := make(map[string]bool, len(ids))
	for _, id := range ids {
		missing[id] = true
	}
	return s.await(ctx, &arrival{missing: missing})
}

func (s *Subscriber) await(ctx context.Context, w *arrival) error {
	w.done = make(chan struct{})
	s.mu.Lock()
	maps.DeleteFunc(w.missing, func(id string, _ bool) bool { return s.received[id] > 0 })
	if len(w.missing) == 0 && len(s.received) >= w.count {
		s.mu.Unlock()
		return nil
	}
	s.waits = append(s.waits, w)
	s.mu.Unlock()
	select {
	case <-w.done:
		return nil
	case <-ctx.Done():
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waits = slices.DeleteFunc(s.waits, func(other *arrival) bool { return other == w })
	if len(w.missing) == 0 {
		return fmt.Errorf("%s received %d different events, want %d: %w", s.URL, len(s.received), w.count, ctx.Err())
	}
	some := make([]string, 0, 5)
	for id := range w.missing {
		if some = append(some, fmt.Sprintf("%s (after %d attempts)", id, s.attempts[id])); len(some) == cap(some) {
			break
		}
	}
	return fmt.Errorf("%s received %d different events; %d are missing, such as %s: %w",
		s.URL, len(s.received), len(w.missing), strings.Join(some, ", "), ctx.Err())
}

// AwaitAttempts waits until check accepts the number of requests by event.
func (s *Subscriber) AwaitAttempts(ctx context.Context, check func(attempts map[string]int) error) error {
	for {
		s.mu.Lock()
		attempts, changed := maps.Clone(s.attempts), s.changed
		s.mu.Unlock()
		err := check(attempts)
		if err == nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(err, ctx.Err())
		}
	}
}

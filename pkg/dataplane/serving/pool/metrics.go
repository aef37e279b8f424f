package pool

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// instruments are the metrics of Revisions, with the labels namespace, service, configuration and revision. The series of a
// Revision are removed with it.
type instruments struct {
	requests                    *metrics.CounterVec
	latency, waiting, coldStart *metrics.HistogramVec
	queued, inFlight            *metrics.GaugeVec
}

func newInstruments(register func(...metrics.Registerable)) *instruments {
	labels := []string{"namespace", "service", "configuration", "revision"}
	gauge := func(name, help string) *metrics.GaugeVec {
		return metrics.NewGaugeVec(&metrics.GaugeOpts{
			Namespace: "knative", Subsystem: "gateway", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
	histogram := func(name, help string, more ...string) *metrics.HistogramVec {
		return metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: "knative", Subsystem: "gateway", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300},
		}, append(labels[:len(labels):len(labels)], more...))
	}
	i := &instruments{
		requests: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "gateway", Name: "requests_total", StabilityLevel: metrics.ALPHA,
			Help: "Number of requests answered, by status code; 0 if the client got no response.",
		}, append(labels[:len(labels):len(labels)], "code")),
		latency: histogram("request_duration_seconds", "Time from the arrival of a request to the end of its response, in seconds."),
		waiting: histogram("queue_wait_seconds", "Time that requests waited for a backend, in seconds; requests that did not wait are not counted."),
		coldStart: histogram("cold_start_seconds", "Time that the first request to a Revision without backend spent, in seconds, by phase: "+
			"scheduling (until the Revision was activated), starting (until a backend was ready), forwarding (until the response started).", "phase"),
		queued:   gauge("queued_requests", "Number of requests that wait for a backend."),
		inFlight: gauge("in_flight_requests", "Number of requests in flight, including waiting ones."),
	}
	if register != nil {
		register(i.requests, i.latency, i.waiting, i.coldStart, i.queued, i.inFlight)
	}
	return i
}

// Series are the metrics of one Revision. Nil records nothing.
type Series struct {
	instruments *instruments
	labels      map[string]string
	// values are the values of labels, in order.
	values           []string
	latency, waiting metrics.ObserverMetric
	coldStart        [len(phases)]metrics.ObserverMetric
	queued, inFlight metrics.GaugeMetric

	// codes has the status codes counted so far. It is copied to grow, under mu.
	codes   atomic.Pointer[[]codeCounter]
	mu      sync.Mutex
	removed bool
}

type codeCounter struct {
	code    int
	counter metrics.CounterMetric
}

func (i *instruments) series(spec *routing.Revision) *Series {
	values := []string{spec.Key.Namespace, spec.Service, spec.Configuration, spec.Key.Name}
	s := &Series{
		instruments: i, values: values,
		labels: map[string]string{
			"namespace": values[0], "service": values[1], "configuration": values[2], "revision": values[3],
		},
		latency: i.latency.WithLabelValues(values...), waiting: i.waiting.WithLabelValues(values...),
		queued: i.queued.WithLabelValues(values...), inFlight: i.inFlight.WithLabelValues(values...),
	}
	for p, name := range phases {
		s.coldStart[p] = i.coldStart.WithLabelValues(append(values[:4:4], name)...)
	}
	s.codes.Store(new([]codeCounter))
	return s
}

// same reports whether these are the series of a Revision.
func (s *Series) same(spec *routing.Revision) bool {
	return s.values[1] == spec.Service && s.values[2] == spec.Configuration
}

// Begin counts a request in flight until Done or Cancel.
func (s *Series) Begin() {
	if s != nil {
		s.inFlight.Inc()
	}
}

// Cancel reverts Begin, without a result.
func (s *Series) Cancel() {
	if s != nil {
		s.inFlight.Dec()
	}
}

// Done ends a request with the status code that the client got.
func (s *Series) Done(code int, took time.Duration) {
	if s == nil {
		return
	}
	s.inFlight.Dec()
	s.latency.Observe(took.Seconds())
	for _, c := range *s.codes.Load() {
		if c.code == code {
			c.counter.Inc()
			return
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removed {
		return
	}
	counter := s.instruments.requests.WithLabelValues(append(s.values[:4:4], strconv.Itoa(code))...)
	counter.Inc()
	codes := append(slices.Clone(*s.codes.Load()), codeCounter{code: code, counter: counter})
	s.codes.Store(&codes)
}

// observeWait records the time that a request waited for a backend.
func (s *Series) observeWait(took time.Duration) {
	if s != nil {
		s.waiting.Observe(took.Seconds())
	}
}

// observePhase records the duration of a phase of a cold start.
func (s *Series) observePhase(p phase, took time.Duration) {
	if s != nil {
		s.coldStart[p].Observe(took.Seconds())
	}
}

// observeQueue publishes the number of requests that wait.
func (s *Series) observeQueue(length int) {
	if s != nil {
		s.queued.Set(float64(length))
	}
}

// remove deletes the series.
func (s *Series) remove() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.removed = true
	i := s.instruments
	with := func(name, value string) map[string]string {
		labels := map[string]string{name: value}
		for k, v := range s.labels {
			labels[k] = v
		}
		return labels
	}
	for _, c := range *s.codes.Load() {
		i.requests.Delete(with("code", strconv.Itoa(c.code)))
	}
	for _, phase := range phases {
		i.coldStart.Delete(with("phase", phase))
	}
	i.latency.Delete(s.labels)
	i.waiting.Delete(s.labels)
	i.queued.Delete(s.labels)
	i.inFlight.Delete(s.labels)
}

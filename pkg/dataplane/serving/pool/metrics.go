package gateway

import (
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// instruments are the metrics of a Gateway. Those of a revision have the labels namespace, service, configuration
// and revision, and go with it.
type instruments struct {
	requests                    *metrics.CounterVec
	unknownHosts, refused       *metrics.CounterVec
	latency, waiting, coldStart *metrics.HistogramVec
	queued, inFlight            *metrics.GaugeVec
	logLinesDropped             *metrics.CounterVec
}

func newInstruments(register func(...metrics.Registerable)) *instruments {
	labels := []string{"namespace", "service", "configuration", "revision"}
	counter := func(name, help string, labels ...string) *metrics.CounterVec {
		return metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "gateway", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		}, labels)
	}
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
		requests:     counter("requests_total", "Number of requests that were answered, by status code; 0 where the client got none.", append(labels, "code")...),
		unknownHosts: counter("unknown_host_requests_total", "Number of requests to host names that no Route has."),
		refused:      counter("refused_requests_total", "Number of requests that were refused for their form, by status code.", "code"),
		latency:      histogram("request_duration_seconds", "Time from a request's arrival to the end of its answer."),
		waiting:      histogram("queue_wait_seconds", "Time that requests waited for an instance; those that did not wait are not counted."),
		coldStart: histogram("cold_start_seconds", "Time that the first request to a revision without instance spent by phase: "+
			"scheduling (until scale was asked for), starting (until an instance was ready), forwarding (until the answer began).", "phase"),
		queued:   gauge("queued_requests", "Number of requests that wait for an instance."),
		inFlight: gauge("in_flight_requests", "Number of requests that are not answered yet, those that wait included."),

		logLinesDropped: counter("access_log_lines_dropped_total", "Number of lines of the access log that were dropped, as its writer was too slow."),
	}
	if register != nil {
		register(i.requests, i.unknownHosts, i.refused, i.latency, i.waiting, i.coldStart, i.queued, i.inFlight, i.logLinesDropped)
	}
	return i
}

// The phases of a cold start.
const (
	scheduling = "scheduling"
	starting   = "starting"
	forwarding = "forwarding"
)

// series are the metrics of one revision.
type series struct {
	instruments *instruments
	labels      map[string]string
	// values are those of labels, in order.
	values                           []string
	latency, waiting                 metrics.ObserverMetric
	scheduling, starting, forwarding metrics.ObserverMetric
	queued, inFlight                 metrics.GaugeMetric

	// codes has the status codes counted so far. It is copied to grow, under mu.
	codes   atomic.Pointer[[]codeCounter]
	mu      sync.Mutex
	removed bool
}

type codeCounter struct {
	code    int
	counter metrics.CounterMetric
}

func (i *instruments) series(spec *routing.Revision) *series {
	values := []string{spec.Key.Namespace, spec.Service, spec.Configuration, spec.Key.Name}
	phase := func(name string) metrics.ObserverMetric {
		return i.coldStart.WithLabelValues(append(values[:4:4], name)...)
	}
	s := &series{
		instruments: i, values: values,
		labels: map[string]string{
			"namespace": values[0], "service": values[1], "configuration": values[2], "revision": values[3],
		},
		latency: i.latency.WithLabelValues(values...), waiting: i.waiting.WithLabelValues(values...),
		scheduling: phase(scheduling), starting: phase(starting), forwarding: phase(forwarding),
		queued: i.queued.WithLabelValues(values...), inFlight: i.inFlight.WithLabelValues(values...),
	}
	s.codes.Store(new([]codeCounter))
	return s
}

// measured returns the series of the pool's revision, or nil where that is unknown.
func (p *pool) measured() *series {
	if series := p.series.Load(); series != nil {
		return series
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if spec := p.spec.Load(); spec != nil && p.series.Load() == nil {
		p.series.Store(p.instruments.series(spec))
	}
	return p.series.Load()
}

// same tells whether these are the series of a revision.
func (s *series) same(spec *routing.Revision) bool {
	return s.values[1] == spec.Service && s.values[2] == spec.Configuration
}

// done counts a request.
func (s *series) done(code int, took time.Duration) {
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

// remove deletes the series.
func (s *series) remove() {
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
	for _, phase := range []string{scheduling, starting, forwarding} {
		i.coldStart.Delete(with("phase", phase))
	}
	i.latency.Delete(s.labels)
	i.waiting.Delete(s.labels)
	i.queued.Delete(s.labels)
	i.inFlight.Delete(s.labels)
}

// coldStart is the progress of a pool from no instance to the first one.
type coldStart struct {
	// began is when the first request waited, asked when scale was asked for, ready when it got an instance.
	began, asked, ready time.Time
}

// begin begins a cold start, unless there is one.
func (c *coldStart) begin(now time.Time) bool {
	if !c.began.IsZero() {
		return false
	}
	*c = coldStart{began: now}
	return true
}

// scheduled notes that scale was asked for.
func (p *pool) scheduled() {
	now := p.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.start.began.IsZero() || !p.start.asked.IsZero() {
		return
	}
	p.start.asked = now
	if series := p.series.Load(); series != nil {
		series.scheduling.Observe(now.Sub(p.start.began).Seconds())
	}
}

// started notes that a request got an instance. p.mu is held.
func (p *pool) started() {
	if p.start.began.IsZero() {
		return
	}
	now := p.clock.Now()
	since := p.start.asked
	if since.IsZero() {
		since = p.start.began
	}
	p.start = coldStart{ready: now}
	if series := p.series.Load(); series != nil {
		series.starting.Observe(now.Sub(since).Seconds())
	}
}

// forwarded notes that the answer to the first request of a cold start begins.
func (p *pool) forwarded() {
	now := p.clock.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.start.ready.IsZero() {
		return
	}
	if series := p.series.Load(); series != nil {
		series.forwarding.Observe(now.Sub(p.start.ready).Seconds())
	}
	p.start.ready = time.Time{}
}

// observeQueue shows the length of the queue. p.mu is held.
func (p *pool) observeQueue() {
	if series := p.series.Load(); series != nil {
		series.queued.Set(float64(p.queue.length))
	}
}

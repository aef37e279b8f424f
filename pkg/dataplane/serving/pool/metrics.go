package pool

import (
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/blang/semver/v4"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/component-base/metrics"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry/histogram"
)

// instruments are the metrics of Revisions, with the labels namespace, service, configuration and revision. The series of a
// Revision are removed with it.
type instruments struct {
	waiting, coldStart *metrics.HistogramVec
	// derived reports what the Series count once for several metrics.
	derived *derived
}

func newInstruments(register func(...metrics.Registerable)) *instruments {
	labels := revisionLabels()
	vector := func(name, help string, more ...string) *metrics.HistogramVec {
		return metrics.NewHistogramVec(&metrics.HistogramOpts{
			Namespace: "knative", Subsystem: "gateway", Name: name, Help: help, StabilityLevel: metrics.ALPHA, Buckets: histogram.Fine(),
		}, append(labels, more...))
	}
	i := &instruments{
		waiting: vector("queue_wait_seconds", "Time that requests waited for a backend, in seconds; requests that did not wait are not counted."),
		coldStart: vector("cold_start_seconds", "Time that the first request to a Revision without backend spent, in seconds, by phase: "+
			"scheduling (until the Revision was activated), starting (until a backend was ready), forwarding (until the response started).", "phase"),
		derived: newDerived(),
	}
	if register != nil {
		register(i.waiting, i.coldStart, i.derived)
	}
	return i
}

// revisionLabels returns the labels of the metrics of this server.
func revisionLabels() []string {
	return []string{"namespace", "service", "configuration", "revision"}
}

// knativeLabels returns the labels of Knative's metrics with the same values.
func knativeLabels() []string {
	return []string{"k8s_namespace_name", "kn_service_name", "kn_configuration_name", "kn_revision_name"}
}

// derived reports the metrics of requests by the names of this server and by Knative's: a request is counted once, in its Series.
type derived struct {
	requests, latency, queued, inFlight             *prometheus.Desc
	invocations, server, knativeQueued, knativeBusy *prometheus.Desc

	// mu guards series.
	mu     sync.Mutex
	series map[*Series]struct{}
}

var _ metrics.Registerable = &derived{}

func newDerived() *derived {
	desc := func(name, help string, labels []string, more ...string) *prometheus.Desc {
		return prometheus.NewDesc(name, "[ALPHA] "+help, append(labels, more...), nil)
	}
	return &derived{
		requests: desc("knative_gateway_requests_total", "Number of requests answered, by status code; 0 if the client got no response.", revisionLabels(), "code"),
		latency:  desc("knative_gateway_request_duration_seconds", "Time from the arrival of a request to the end of its response, in seconds.", revisionLabels()),
		queued:   desc("knative_gateway_queued_requests", "Number of requests that wait for a backend.", revisionLabels()),
		inFlight: desc("knative_gateway_in_flight_requests", "Number of requests in flight, including waiting ones.", revisionLabels()),

		invocations:   desc("kn_serving_invocation_duration_seconds", "The duration of requests to a Revision, in seconds.", knativeLabels(), "http_response_status_code"),
		server:        desc("http_server_request_duration_seconds", "Duration of HTTP server requests, in seconds.", knativeLabels(), "http_request_method", "http_response_status_code"),
		knativeQueued: desc("kn_revision_request_queued", "Number of requests that wait for a backend.", []string{"k8s_namespace_name", "kn_revision_name"}),
		knativeBusy:   desc("kn_revision_request_active", "Number of requests at a backend.", []string{"k8s_namespace_name", "kn_revision_name"}),
		series:        map[*Series]struct{}{},
	}
}

// Create implements metrics.Registerable.
func (*derived) Create(*semver.Version) bool { return true }

// ClearState implements metrics.Registerable.
func (*derived) ClearState() {}

// FQName implements metrics.Registerable.
func (*derived) FQName() string { return "knative_gateway_requests_total" }

// Describe implements prometheus.Collector.
func (d *derived) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{d.requests, d.latency, d.queued, d.inFlight, d.invocations, d.server, d.knativeQueued, d.knativeBusy} {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (d *derived) Collect(to chan<- prometheus.Metric) {
	d.mu.Lock()
	all := slices.Collect(maps.Keys(d.series))
	d.mu.Unlock()
	for _, s := range all {
		d.collect(to, s)
	}
}

// collect sends the metrics of a Revision.
func (d *derived) collect(to chan<- prometheus.Metric, s *Series) {
	gauge := func(desc *prometheus.Desc, value int64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, float64(value), labels...)
	}
	queued, inFlight := s.queued.Load(), s.inFlight.Load()
	gauge(d.queued, queued, s.values...)
	gauge(d.inFlight, inFlight, s.values...)
	gauge(d.knativeQueued, queued, s.values[0], s.values[3])
	gauge(d.knativeBusy, max(inFlight-queued, 0), s.values[0], s.values[3])
	var all histogram.Sum
	byCode := map[int]*histogram.Sum{}
	s.outcomes.Each(func(o outcome, took *histogram.Histogram) {
		var one histogram.Sum
		one.Add(took)
		all.Merge(&one)
		if byCode[o.code] == nil {
			byCode[o.code] = &histogram.Sum{}
		}
		byCode[o.code].Merge(&one)
		if o.code != 0 {
			to <- one.Metric(d.server, histogram.Knative(), append(s.values[:4:4], o.method, strconv.Itoa(o.code))...)
		}
	})
	to <- all.Metric(d.latency, histogram.Fine(), s.values...)
	for code, sum := range byCode {
		labels := slices.Concat(s.values[:4], []string{strconv.Itoa(code)})
		to <- prometheus.MustNewConstMetric(d.requests, prometheus.CounterValue, float64(sum.Count()), labels...)
		if code != 0 {
			to <- sum.Metric(d.invocations, histogram.Knative(), labels...)
		}
	}
}

// maxOutcomes bounds the pairs of a method and a status code that are counted for a Revision. Further ones are counted by OtherMethod and the
// hundred of the status code.
const maxOutcomes = 128

// OtherMethod stands for methods that are not known (OpenTelemetry's conventions).
const OtherMethod = "_OTHER"

// Method returns the method of a request for Series.Done, without reference to the request.
func Method[T string | []byte](method T) string {
	switch string(method) {
	case "GET":
		return "GET"
	case "POST":
		return "POST"
	case "HEAD":
		return "HEAD"
	case "PUT":
		return "PUT"
	case "DELETE":
		return "DELETE"
	case "PATCH":
		return "PATCH"
	case "OPTIONS":
		return "OPTIONS"
	case "TRACE":
		return "TRACE"
	case "CONNECT":
		return "CONNECT"
	}
	return OtherMethod
}

// Series are the metrics of one Revision. Nil records nothing.
type Series struct {
	instruments *instruments
	labels      map[string]string
	// values are the values of labels, in order.
	values           []string
	waiting          metrics.ObserverMetric
	coldStart        [len(phases)]metrics.ObserverMetric
	queued, inFlight atomic.Int64

	// outcomes counts the requests that have ended.
	outcomes histogram.Vector[outcome]
}

// outcome is the method and the status code of a request.
type outcome struct {
	method string
	code   int
}

// coarse is the outcome that counts other ones once there are maxOutcomes.
func (o outcome) coarse() outcome { return outcome{method: OtherMethod, code: o.code / 100 * 100} }

func (i *instruments) series(spec *routing.Revision) *Series {
	values := []string{spec.Key.Namespace, spec.Service, spec.Configuration, spec.Key.Name}
	s := &Series{
		instruments: i, values: values,
		labels: map[string]string{
			"namespace": values[0], "service": values[1], "configuration": values[2], "revision": values[3],
		},
		waiting: i.waiting.WithLabelValues(values...),
	}
	for p, name := range phases {
		s.coldStart[p] = i.coldStart.WithLabelValues(append(values[:4:4], name)...)
	}
	i.derived.mu.Lock()
	defer i.derived.mu.Unlock()
	i.derived.series[s] = struct{}{}
	return s
}

// same reports whether these are the series of a Revision.
func (s *Series) same(spec *routing.Revision) bool {
	return s.values[1] == spec.Service && s.values[2] == spec.Configuration
}

// Begin counts a request in flight until Done or Cancel.
func (s *Series) Begin() {
	if s != nil {
		s.inFlight.Add(1)
	}
}

// Cancel reverts Begin, without a result.
func (s *Series) Cancel() {
	if s != nil {
		s.inFlight.Add(-1)
	}
}

// Done ends a request with the status code that the client got, or 0, and a method of Method.
func (s *Series) Done(method string, code int, took time.Duration) {
	if s == nil {
		return
	}
	s.inFlight.Add(-1)
	s.outcomes.Of(outcome{method: method, code: code}, maxOutcomes, outcome.coarse).Observe(took)
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
		s.queued.Store(int64(length))
	}
}

// remove deletes the series.
func (s *Series) remove() {
	i := s.instruments
	i.derived.mu.Lock()
	delete(i.derived.series, s)
	i.derived.mu.Unlock()
	for _, phase := range phases {
		labels := maps.Clone(s.labels)
		labels["phase"] = phase
		i.coldStart.Delete(labels)
	}
	i.waiting.Delete(s.labels)
}

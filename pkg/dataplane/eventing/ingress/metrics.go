package ingress

import (
	"net/http"
	"strconv"
	"time"

	"k8s.io/component-base/metrics"
)

// instruments are the metrics of a Handler.
type instruments struct {
	requests *metrics.CounterVec
	latency  *metrics.Histogram
	// byCode holds the counters of the common status codes.
	byCode map[int]metrics.CounterMetric
}

func newInstruments(register func(...metrics.Registerable)) *instruments {
	i := &instruments{
		requests: metrics.NewCounterVec(&metrics.CounterOpts{
			Namespace: "knative", Subsystem: "broker_ingress", Name: "requests_total", StabilityLevel: metrics.ALPHA,
			Help: "Number of requests to Brokers and Channels, by status code of the response.",
		}, []string{"code"}),
		latency: metrics.NewHistogram(&metrics.HistogramOpts{
			Namespace: "knative", Subsystem: "broker_ingress", Name: "request_duration_seconds", StabilityLevel: metrics.ALPHA,
			Help:    "Time from the arrival of a request until its events were accepted or rejected, in seconds.",
			Buckets: []float64{.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		byCode: map[int]metrics.CounterMetric{},
	}
	if register != nil {
		register(i.requests, i.latency)
	}
	for _, code := range []int{
		http.StatusOK, http.StatusAccepted, http.StatusBadRequest, http.StatusNotFound, http.StatusMethodNotAllowed,
		http.StatusRequestTimeout, http.StatusRequestEntityTooLarge, http.StatusUnsupportedMediaType,
		http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable,
	} {
		i.byCode[code] = i.requests.WithLabelValues(strconv.Itoa(code))
	}
	return i
}

// done counts a request.
func (i *instruments) done(code int, took time.Duration) {
	i.latency.Observe(took.Seconds())
	counter, found := i.byCode[code]
	if !found {
		counter = i.requests.WithLabelValues(strconv.Itoa(code))
	}
	counter.Inc()
}

package telemetry

import (
	"strconv"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
)

// originals are the names and units of Knative's metrics, by their names in Prometheus. The gauges of revisions have no unit there.
var originals = map[string]struct{ name, unit string }{
	"kn_serving_invocation_duration_seconds": {"kn.serving.invocation.duration", "s"},
	"http_server_request_duration_seconds":   {"http.server.request.duration", "s"},
	"kn_eventing_dispatch_duration_seconds":  {"kn.eventing.dispatch.duration", "s"},
	"kn_revision_request_queued":             {"kn.revision.request.queued", "{request}"},
	"kn_revision_request_active":             {"kn.revision.request.active", "{request}"},
	"kn_revision_pods_desired":               {"kn.revision.pods.desired", "{item}"},
	"kn_revision_pods_count":                 {"kn.revision.pods.count", "{pod}"},
	"kn_revision_capacity_excess":            {"kn.revision.capacity.excess", "{concurrency}"},
	"kn_revision_panic_mode":                 {"kn.revision.panic.mode", ""},
	"kn_revision_concurrency_stable":         {"kn.revision.concurrency.stable", "{concurrency}"},
	"kn_revision_concurrency_panic":          {"kn.revision.concurrency.panic", "{concurrency}"},
	"kn_revision_concurrency_target":         {"kn.revision.concurrency.target", "{concurrency}"},
	"kn_revision_rps_stable_per_second":      {"kn.revision.rps.stable", "{request}/s"},
	"kn_revision_rps_panic_per_second":       {"kn.revision.rps.panic", "{request}/s"},
	"kn_revision_rps_target_per_second":      {"kn.revision.rps.target", "{request}/s"},
}

// statusCode is the attribute with an integer.
const statusCode = "http.response.status_code"

// originalAttribute returns the name of an attribute by its label: all parts are separated by dots, but the words of two.
func originalAttribute(label string) string {
	if label == "http_response_status_code" {
		return statusCode
	}
	return strings.ReplaceAll(label, "_", ".")
}

// original returns a metric of Knative by its name in OpenTelemetry, and other metrics unchanged.
func original(m metricdata.Metrics) metricdata.Metrics {
	known, ok := originals[m.Name]
	if !ok {
		return m
	}
	m.Name, m.Unit = known.name, known.unit
	switch d := m.Data.(type) {
	case metricdata.Gauge[float64]:
		for i := range d.DataPoints {
			d.DataPoints[i].Attributes = originalAttributes(d.DataPoints[i].Attributes)
		}
	case metricdata.Histogram[float64]:
		for i := range d.DataPoints {
			d.DataPoints[i].Attributes = originalAttributes(d.DataPoints[i].Attributes)
		}
	}
	return m
}

// originalAttributes returns the attributes by labels without the empty ones.
func originalAttributes(labels attribute.Set) attribute.Set {
	all := make([]attribute.KeyValue, 0, labels.Len())
	for _, label := range labels.ToSlice() {
		name, value := originalAttribute(string(label.Key)), label.Value.AsString()
		switch code, err := strconv.Atoi(value); {
		case value == "":
		case name == statusCode && err == nil:
			all = append(all, attribute.Int(name, code))
		default:
			all = append(all, attribute.String(name, value))
		}
	}
	return attribute.NewSet(all...)
}

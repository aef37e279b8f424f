package settings

import (
	"net"
	"net/url"
	"strings"
	"time"
)

// ObservabilityConfigMapName is the name of the ConfigMap with the settings of traces and metrics.
const ObservabilityConfigMapName = "config-observability"

// ExportProtocol is how traces or metrics are exported.
type ExportProtocol string

// ExportNone exports nothing, ExportGRPC by OTLP/gRPC, ExportHTTP by OTLP/HTTP. ExportStdout writes traces to stdout, and
// ExportPrometheus leaves metrics to Prometheus, which reads them from the server anyway.
const (
	ExportNone       ExportProtocol = "none"
	ExportGRPC       ExportProtocol = "grpc"
	ExportHTTP       ExportProtocol = "http/protobuf"
	ExportStdout     ExportProtocol = "stdout"
	ExportPrometheus ExportProtocol = "prometheus"
)

// OTLP reports whether the protocol sends to an endpoint.
func (p ExportProtocol) OTLP() bool { return p == ExportGRPC || p == ExportHTTP }

// Observability is config-observability: where traces and metrics are exported to. Its values can be compared.
type Observability struct {
	Tracing Tracing
	// Metrics exports the metrics of the server, and RequestMetrics the metrics of requests to Revisions.
	Metrics, RequestMetrics MetricsExport
}

// Tracing configures the export of the spans of requests and events.
type Tracing struct {
	Protocol ExportProtocol
	// Endpoint is the URL of a collector, of scheme http or https.
	Endpoint string
	// SamplingRate is the fraction of new traces that is recorded, 0 to 1. Traces that a client has begun are recorded if the client
	// records them.
	SamplingRate float64
}

// MetricsExport configures an export of metrics.
type MetricsExport struct {
	Protocol ExportProtocol
	// Endpoint is the URL of a collector, of scheme http or https.
	Endpoint string
	// Interval is the time between two exports.
	Interval time.Duration
}

// defaultExportInterval is the interval of exports of metrics without a setting.
const defaultExportInterval = time.Minute

func defaultObservability() Observability {
	none := MetricsExport{Protocol: ExportNone, Interval: defaultExportInterval}
	return Observability{Tracing: Tracing{Protocol: ExportNone}, Metrics: none, RequestMetrics: none}
}

// The keys of config-observability that are named in reasons.
const (
	tracingProtocolKey = "tracing-protocol"
	tracingEndpointKey = "tracing-endpoint"
	tracingRateKey     = "tracing-sampling-rate"
	metricsPrefix      = "metrics-"
	requestPrefix      = "request-metrics-"
	protocolSuffix     = "protocol"
	endpointSuffix     = "endpoint"
	intervalSuffix     = "export-interval"
	runtimeProfiling   = "runtime-profiling"
	runtimeInterval    = "runtime-export-interval"
)

// parseObservability sets the values of config-observability in s. Keys without effect are checked nevertheless, as Knative does.
func parseObservability(p *parser, s *Settings) error {
	o, faults := &s.Observability, len(p.errs)
	read(p, &o.Tracing.Protocol, protocolOf(ExportNone, ExportGRPC, ExportHTTP, ExportStdout), "'none', 'grpc', 'http/protobuf' or 'stdout'", tracingProtocolKey)
	read(p, &o.Tracing.Endpoint, anyText, "text", tracingEndpointKey)
	read(p, &o.Tracing.SamplingRate, number(func(n float64) bool { return n >= 0 && n <= 1 }), "a number from 0 to 1", tracingRateKey)
	if len(p.errs) == faults {
		checkEndpoint(p, tracingEndpointKey, tracingProtocolKey, o.Tracing.Protocol, o.Tracing.Endpoint)
	}
	readMetrics(p, &o.Metrics, metricsPrefix)
	readMetrics(p, &o.RequestMetrics, requestPrefix)

	var profiling bool
	read(p, &profiling, toggle, "'enabled' or 'disabled'", runtimeProfiling)
	var interval time.Duration
	read(p, &interval, period(func(d time.Duration) bool { return d >= 0 }), "a duration of at least 0s", runtimeInterval)
	return p.done()
}

// readMetrics reads the keys of an export of metrics.
func readMetrics(p *parser, m *MetricsExport, prefix string) {
	faults := len(p.errs)
	read(p, &m.Protocol, protocolOf(ExportNone, ExportPrometheus, ExportGRPC, ExportHTTP), "'none', 'prometheus', 'grpc' or 'http/protobuf'", prefix+protocolSuffix)
	read(p, &m.Endpoint, anyText, "text", prefix+endpointSuffix)
	read(p, &m.Interval, func(value string) (time.Duration, bool) {
		if value == "" {
			return defaultExportInterval, true
		}
		d, ok := period(func(d time.Duration) bool { return d == 0 || d >= time.Second })(value)
		if d == 0 {
			d = defaultExportInterval
		}
		return d, ok
	}, "a duration of at least 1s, or 0 for 60s", prefix+intervalSuffix)
	if len(p.errs) == faults {
		checkEndpoint(p, prefix+endpointSuffix, prefix+protocolSuffix, m.Protocol, m.Endpoint)
	}
}

// protocolOf returns a parser of protocols.
func protocolOf(allowed ...ExportProtocol) func(string) (ExportProtocol, bool) {
	return func(value string) (ExportProtocol, bool) {
		for _, protocol := range allowed {
			if strings.EqualFold(value, string(protocol)) {
				return protocol, true
			}
		}
		return "", false
	}
}

func anyText(value string) (string, bool) { return value, true }

// checkEndpoint checks an endpoint against its protocol.
func checkEndpoint(p *parser, key, protocolKey string, protocol ExportProtocol, endpoint string) {
	switch {
	case protocol.OTLP():
		p.check(validCollector(endpoint, protocol), key, "be a URL such as http://collector.observability:4317, of scheme http or https%s, if '%s' is '%s'",
			map[ExportProtocol]string{ExportGRPC: " and without path"}[protocol], protocolKey, protocol)
	case protocol == ExportPrometheus:
		_, _, err := net.SplitHostPort(endpoint)
		p.check(endpoint == "" || err == nil, key, "be an address such as 0.0.0.0:9090, if '%s' is '%s'", protocolKey, protocol)
	default:
		p.check(endpoint == "", key, "be empty, if '%s' is '%s'", protocolKey, protocol)
	}
}

// validCollector reports whether an endpoint is the URL of a collector.
func validCollector(endpoint string, protocol ExportProtocol) bool {
	u, err := url.Parse(endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return false
	}
	return protocol != ExportGRPC || u.Path == "" || u.Path == "/"
}

// idleObservability is idle for config-observability.
func idleObservability(o Observability) map[string]string {
	keys := map[string]string{}
	for prefix, m := range map[string]MetricsExport{metricsPrefix: o.Metrics, requestPrefix: o.RequestMetrics} {
		if m.Protocol == ExportPrometheus && m.Endpoint != "" {
			keys[prefix+endpointSuffix] = metricsPath
		}
		if !m.Protocol.OTLP() && m.Interval != defaultExportInterval {
			keys[prefix+intervalSuffix] = prefix + protocolSuffix + " is neither grpc nor http/protobuf"
		}
	}
	if o.Tracing.SamplingRate > 0 && !o.Tracing.Protocol.OTLP() {
		reason := tracingProtocolKey + " is none"
		if o.Tracing.Protocol == ExportStdout {
			reason = tracingProtocolKey + " is stdout, which samples all traces"
		}
		keys[tracingRateKey] = reason
	}
	return keys
}

package settings

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestObservability(t *testing.T) {
	none := MetricsExport{Protocol: ExportNone, Interval: time.Minute}
	tests := map[string]struct {
		data map[string]string
		want Observability
	}{
		"defaults": {nil, Observability{Tracing{Protocol: ExportNone}, none, none}},
		"OTLP": {
			map[string]string{
				"tracing-protocol": "grpc", "tracing-endpoint": "http://collector.observability:4317", "tracing-sampling-rate": "0.01",
				"metrics-protocol": "http/protobuf", "metrics-endpoint": "https://collector.observability/otlp/v1/metrics", "metrics-export-interval": "15s",
				"request-metrics-protocol": "grpc", "request-metrics-endpoint": "http://[::1]:4317/", "request-metrics-export-interval": "0",
			},
			Observability{
				Tracing{ExportGRPC, "http://collector.observability:4317", .01},
				MetricsExport{ExportHTTP, "https://collector.observability/otlp/v1/metrics", 15 * time.Second},
				MetricsExport{ExportGRPC, "http://[::1]:4317/", time.Minute},
			},
		},
		"as Knative ships it": {
			map[string]string{
				"metrics-protocol": "prometheus", "metrics-endpoint": "0.0.0.0:9090", "metrics-export-interval": "", "request-metrics-protocol": "none", "request-metrics-endpoint": "",
				"runtime-profiling": "enabled", "runtime-export-interval": "15s", "tracing-protocol": "stdout", "tracing-endpoint": "",
			},
			Observability{Tracing{Protocol: ExportStdout}, MetricsExport{ExportPrometheus, "0.0.0.0:9090", time.Minute}, none},
		},
	}
	for name, test := range tests {
		store := NewStore(Default("example.com"))
		if faults := store.Update(map[string]map[string]string{ObservabilityConfigMapName: test.data}); len(faults) > 0 {
			t.Errorf("%s: %v", name, faults)
		}
		if diff := cmp.Diff(test.want, store.Get().Observability); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestInvalidObservability checks that errors name the key and the allowed values, and that the last valid settings stay.
func TestInvalidObservability(t *testing.T) {
	good := map[string]string{"tracing-protocol": "grpc", "tracing-endpoint": "http://c:4317", "tracing-sampling-rate": "1"}
	for want, data := range map[string]map[string]string{
		"key 'tracing-protocol' of config-observability must be 'none', 'grpc', 'http/protobuf' or 'stdout', not \"zipkin\"": {"tracing-protocol": "zipkin", "tracing-endpoint": "http://c:4317"},
		"key 'tracing-sampling-rate' of config-observability must be a number from 0 to 1":                                   {"tracing-sampling-rate": "1.1"},
		"key 'tracing-endpoint' of config-observability must be a URL such as http://collector.observability:4317":           {"tracing-protocol": "http/protobuf", "tracing-endpoint": "c:4317"},
		"and without path, if 'tracing-protocol' is 'grpc'":                                                                  {"tracing-protocol": "grpc", "tracing-endpoint": "http://c:4317/v1/traces"},
		"of scheme http or https, if 'request-metrics-protocol' is 'http/protobuf'":                                          {"request-metrics-protocol": "http/protobuf"},
		"key 'tracing-endpoint' of config-observability must be empty, if 'tracing-protocol' is 'stdout'":                    {"tracing-protocol": "stdout", "tracing-endpoint": "http://c"},
		"key 'metrics-endpoint' of config-observability must be empty, if 'metrics-protocol' is 'none'":                      {"metrics-endpoint": "http://c"},
		"key 'metrics-endpoint' of config-observability must be an address such as 0.0.0.0:9090":                             {"metrics-protocol": "prometheus", "metrics-endpoint": "9090"},
		"key 'metrics-protocol' of config-observability must be 'none', 'prometheus', 'grpc' or 'http/protobuf'":             {"metrics-protocol": "stdout"},
		"key 'metrics-export-interval' of config-observability must be a duration of at least 1s, or 0 for 60s":              {"metrics-export-interval": "-1s"},
		"key 'runtime-profiling' of config-observability must be 'enabled' or 'disabled'":                                    {"runtime-profiling": "true"},
		"key 'runtime-export-interval' of config-observability must be a duration of at least 0s":                            {"runtime-export-interval": "-1s"},
	} {
		store := NewStore(Default("example.com"))
		store.Update(map[string]map[string]string{ObservabilityConfigMapName: good})
		err := store.Update(map[string]map[string]string{ObservabilityConfigMapName: data})[ObservabilityConfigMapName]
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "must") != 1 {
			t.Errorf("%v gives %v, want one error with %s", data, err, want)
		}
		if got := store.Get().Observability.Tracing.Endpoint; got != "http://c:4317" {
			t.Errorf("%v replaces the endpoint by %q", data, got)
		}
	}
}

func TestUnusedObservability(t *testing.T) {
	got := Unused(ObservabilityConfigMapName, map[string]string{
		"metrics-protocol": "prometheus", "metrics-endpoint": ":9090", "metrics-export-interval": "5s", "request-metrics-protocol": "none",
		"tracing-protocol": "none", "tracing-sampling-rate": "0.1", "runtime-profiling": "enabled", "logging.enable-request-log": "true", "metrics.backend-destination": "x",
	})
	want := []UnusedKey{
		{"logging.enable-request-log", "use --access-log"},
		{"metrics-endpoint", "Prometheus reads /metrics of the API port"},
		{"metrics-export-interval", "metrics-protocol is neither grpc nor http/protobuf"},
		{"metrics.backend-destination", unknown},
		{"runtime-profiling", "use --profiling, whose readers are authorized"},
		{"tracing-sampling-rate", "tracing-protocol is none"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got := Unused(ObservabilityConfigMapName, map[string]string{"tracing-protocol": "grpc", "tracing-endpoint": "http://c:4317", "tracing-sampling-rate": "0.1"}); got != nil {
		t.Errorf("valid settings have unused keys %v", got)
	}
}

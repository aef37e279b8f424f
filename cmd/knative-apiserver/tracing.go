package main

import (
	"fmt"

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const (
	// defaultCollector is the endpoint of a TracingConfiguration without one.
	defaultCollector = "localhost:4317"
	// million is the number of traces that samplingRatePerMillion refers to.
	million = 1e6
)

// readTracing reads the file of --tracing-config-file: where the spans of requests and events go unless config-observability selects it. An empty
// path means nowhere.
func readTracing(path string) (settings.Tracing, error) {
	if path == "" {
		return settings.Tracing{}, nil
	}
	config, err := genericoptions.ReadTracingConfiguration(path)
	if err != nil {
		return settings.Tracing{}, fmt.Errorf("read --tracing-config-file: %w", err)
	}
	return settings.Tracing{
		Protocol: settings.ExportGRPC, Endpoint: ptr.Deref(config.Endpoint, defaultCollector),
		SamplingRate: min(float64(ptr.Deref(config.SamplingRatePerMillion, 0))/million, 1),
	}, nil
}

// Package bench measures the API against the host's own, side by side through the same kube-apiserver.
package bench

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const namespace = "default"

// BenchmarkAPI stores 2,000 Services and 2,000 ConfigMaps of the same size and reads them back, and reports
// the Services' figures and their ratio to the ConfigMaps'.
func BenchmarkAPI(b *testing.B) {
	for b.Loop() {
		config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
		if err != nil {
			b.Fatal(err)
		}
		config.QPS = -1
		benchmarkAPI(b, config)
	}
}

func benchmarkAPI(b *testing.B, config *rest.Config) {
	client := kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient()
	services := &subject{
		resource: schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"},
		object:   service,
		client:   client,
	}
	// Padded so that a stored ConfigMap is as large as a stored Service with its defaults.
	services.create(b, objects, objects+1)
	configMaps := &subject{resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}, client: client}
	configMaps.object = configMap(0)
	configMaps.create(b, objects, objects+1)
	configMaps.object = configMap(services.size(b, name(objects)) - configMaps.size(b, name(objects)))

	var createServices, createConfigMaps time.Duration
	var getServices, getConfigMaps []time.Duration
	memoryBefore := residentMemory(b, config)
	for round := range rounds {
		from, to := round*objects/rounds, (round+1)*objects/rounds
		createServices += services.create(b, from, to)
		createConfigMaps += configMaps.create(b, from, to)
	}
	memoryAfter := residentMemory(b, config)
	for round := range rounds {
		from, to := round*objects/rounds, (round+1)*objects/rounds
		getServices = append(getServices, services.get(b, from, to)...)
		getConfigMaps = append(getConfigMaps, configMaps.get(b, from, to)...)
	}
	var listServices, listConfigMaps []time.Duration
	var bytesServices, bytesConfigMaps int
	for range rounds {
		var took time.Duration
		took, bytesServices = services.list(b)
		listServices = append(listServices, took)
		took, bytesConfigMaps = configMaps.list(b)
		listConfigMaps = append(listConfigMaps, took)
	}

	b.ReportMetric(float64(services.size(b, name(0))), "bytes/service")
	b.ReportMetric(float64(configMaps.size(b, name(0))), "bytes/configmap")
	b.ReportMetric(objects/createServices.Seconds(), "creates/s")
	b.ReportMetric(createConfigMaps.Seconds()/createServices.Seconds(), "creates-ratio")
	b.ReportMetric(quantile(getServices, 0.99).Seconds()*1000, "get-p99-ms")
	b.ReportMetric(quantile(getServices, 0.99).Seconds()/quantile(getConfigMaps, 0.99).Seconds(), "get-p99-ratio")
	perByte := func(took []time.Duration, bytes int) float64 {
		return float64(quantile(took, 0.5).Nanoseconds()) / float64(bytes)
	}
	b.ReportMetric(perByte(listServices, bytesServices), "list-ns/byte")
	b.ReportMetric(perByte(listServices, bytesServices)/perByte(listConfigMaps, bytesConfigMaps), "list-ratio")
	b.ReportMetric(float64(memoryAfter-memoryBefore)/objects, "server-bytes/service")
}

func service(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1",
		"kind":       "Service",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": name}},
			"spec": map[string]any{"containers": []any{map[string]any{
				"image": "ko.local/hello",
				"env":   []any{map[string]any{"name": "TARGET", "value": name}},
			}}},
		}},
	}}
}

func configMap(padding int) func(string) *unstructured.Unstructured {
	return func(name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "v1",
			"kind":       "ConfigMap",
			"metadata":   map[string]any{"name": name},
			"data":       map[string]any{"padding": strings.Repeat("x", max(padding, 0))},
		}}
	}
}

var _ = context.Background
var _ metav1.ListOptions

func residentMemory(b *testing.B, config *rest.Config) int64 {
	raw, err := os.ReadFile("/proc/" + os.Getenv("SERVER_PID") + "/status")
	if err != nil {
		b.Fatal(err)
	}
	for _, line := range strings.Split(string(raw), "\n") {
		var kb int64
		if n, _ := fmt.Sscanf(line, "VmRSS: %d kB", &kb); n == 1 {
			return kb * 1024
		}
	}
	b.Fatal("no VmRSS")
	return 0
}

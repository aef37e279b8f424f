// Package bench compares the API with the host's own, both through the same kube-apiserver.
package bench

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const namespace = "default"

// host is a cluster with the server installed by the shipped manifests.
var host *harness.Installation

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) (code int) {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	flag.Parse()
	if flag.Lookup("test.bench").Value.String() == "" {
		// This package has no tests; without benchmarks no cluster is started.
		return m.Run()
	}
	if testing.Short() {
		objects = shortObjects
	}
	dir, err := os.MkdirTemp("", "knative-bench-")
	if err != nil {
		return fail(err)
	}
	cluster, err := harness.StartCluster(dir)
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err := cluster.Stop(); err != nil {
			code = fail(err)
		}
	}()
	if host, err = harness.Install(cluster, dir+"/server", "apiserver"); err != nil {
		return fail(err)
	}
	code = m.Run()
	if err := host.Server.Stop(); err != nil {
		return fail(err)
	}
	return code
}

// BenchmarkAPI stores 2,000 Services and 2,000 ConfigMaps of the same size, alternating, and reads them. It reports the values
// of Services and their ratios to the ConfigMaps'. Services of one template are typical for a fleet; distinct templates differ in a
// value, and judged ones in the name of a variable, so that each causes a dry run on the host.
func BenchmarkAPI(b *testing.B) {
	config := rest.CopyConfig(host.Admin.Config)
	config.QPS = -1
	config.WarningHandler = rest.NoWarnings{}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	services := &subject{
		resource: schema.GroupVersionResource{Group: "serving.knative.dev", Version: "v1", Resource: "services"},
		object:   func(name string) *unstructured.Unstructured { return service(name, "TARGET", "world") },
		client:   client.CoreV1().RESTClient(),
	}
	configMaps := &subject{
		resource: schema.GroupVersionResource{Version: "v1", Resource: "configmaps"},
		object:   func(name string) *unstructured.Unstructured { return configMap(name, "") },
		client:   client.CoreV1().RESTClient(),
	}
	for b.Loop() {
		measure(b, services, configMaps)
	}
}

func measure(b *testing.B, services, configMaps *subject) {
	// As large in a response as a Service with its defaults, and as hard to compress.
	sample := objects
	services.create(b, sample, sample+1)
	configMaps.create(b, sample, sample+1)
	text := services.read(b, name(sample))
	text = strings.NewReplacer(`"`, "'", "\n", " ").Replace(text)
	text = text[:len(text)-len(configMaps.read(b, name(sample)))]
	configMaps.object = func(name string) *unstructured.Unstructured { return configMap(name, text) }

	var createServices, createConfigMaps, createDistinct, createJudged time.Duration
	heapBefore := liveHeap(b)
	turns(func(from, to int) {
		createServices += services.create(b, from, to)
		createConfigMaps += configMaps.create(b, from, to)
	})
	heapAfter := liveHeap(b)

	var getServices, getConfigMaps []time.Duration
	for range readings {
		turns(func(from, to int) {
			getServices = append(getServices, services.get(b, from, to)...)
			getConfigMaps = append(getConfigMaps, configMaps.get(b, from, to)...)
		})
	}

	var listServices, listConfigMaps []time.Duration
	var bytesServices, bytesConfigMaps int
	for range listings {
		var took time.Duration
		took, bytesServices = services.list(b)
		listServices = append(listServices, took)
		took, bytesConfigMaps = configMaps.list(b)
		listConfigMaps = append(listConfigMaps, took)
	}

	distinct, judged := *services, *services
	distinct.object = func(name string) *unstructured.Unstructured { return service("distinct-"+name, "TARGET", name) }
	judged.object = func(name string) *unstructured.Unstructured {
		return service("judged-"+name, strings.ToUpper(strings.ReplaceAll(name, "-", "_")), "world")
	}
	turns(func(from, to int) {
		createDistinct += distinct.create(b, from, to)
		createJudged += judged.create(b, from, to)
	})

	b.ReportMetric(float64(bytesServices)/float64(objects), "bytes/Service")
	b.ReportMetric(float64(bytesConfigMaps)/float64(objects), "bytes/ConfigMap")
	b.ReportMetric(float64(objects)/createServices.Seconds(), "creates/s")
	b.ReportMetric(createConfigMaps.Seconds()/createServices.Seconds(), "creates-ratio")
	b.ReportMetric(createConfigMaps.Seconds()/createDistinct.Seconds(), "creates-distinct-ratio")
	b.ReportMetric(createConfigMaps.Seconds()/createJudged.Seconds(), "creates-judged-ratio")
	b.ReportMetric(milliseconds(quantile(getServices, 0.99)), "get-p99-ms")
	b.ReportMetric(ratio(quantile(getServices, 0.99), quantile(getConfigMaps, 0.99)), "get-p99-ratio")
	b.ReportMetric(milliseconds(quantile(listServices, 0.5)), "list-ms")
	b.ReportMetric(ratio(quantile(listServices, 0.5), quantile(listConfigMaps, 0.5))*float64(bytesConfigMaps)/float64(bytesServices), "list-per-byte-ratio")
	b.ReportMetric(float64(heapAfter-heapBefore)/float64(objects), "heap-bytes/Service")
}

func milliseconds(d time.Duration) float64 { return d.Seconds() * 1000 }

func ratio(a, b time.Duration) float64 { return a.Seconds() / b.Seconds() }

func service(name, variable, value string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "serving.knative.dev/v1",
		"kind":       "Service",
		"metadata":   map[string]any{"name": name},
		"spec": map[string]any{"template": map[string]any{
			"metadata": map[string]any{"labels": map[string]any{"app": "hello"}},
			"spec": map[string]any{"containers": []any{map[string]any{
				"image": "ko.local/hello",
				"env":   []any{map[string]any{"name": variable, "value": value}},
			}}},
		}},
	}}
}

func configMap(name, text string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1",
		"kind":       "ConfigMap",
		"metadata":   map[string]any{"name": name},
		"data":       map[string]any{"text": text},
	}}
}

// liveHeap returns the live heap of the server in bytes, after a garbage collection.
func liveHeap(b *testing.B) int64 {
	b.Helper()
	config, err := host.Direct()
	if err != nil {
		b.Fatal(err)
	}
	config.CertData, config.KeyData = host.Admin.Config.CertData, host.Admin.Config.KeyData
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		b.Fatal(err)
	}
	get := func(path string) string {
		// Writing a heap profile runs a garbage collection.
		raw, err := client.RESTClient().Get().RequestURI(path).DoRaw(context.Background())
		if err != nil {
			b.Fatalf("%s: %v", path, err)
		}
		return string(raw)
	}
	get("/debug/pprof/heap?gc=1")
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(get("/metrics")))
	if err != nil {
		b.Fatal(err)
	}
	return int64(families["go_memstats_heap_alloc_bytes"].GetMetric()[0].GetGauge().GetValue())
}

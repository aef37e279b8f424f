package flow

import (
	"fmt"
	"testing"

	"k8s.io/component-base/metrics"
)

func TestMetricsNameFewNamespaces(t *testing.T) {
	b := NewBudget(1<<20, 1)
	for i := range 3 * maxReported {
		b.Add(fmt.Sprintf("ns-%02d", i), int64(i+1))
	}
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(b.Metrics())
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	values := map[string]float64{}
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			name := family.GetName()
			for _, label := range metric.GetLabel() {
				name += "/" + label.GetValue()
			}
			values[name] = metric.GetGauge().GetValue()
		}
	}
	if len(values) != 2+maxReported {
		t.Errorf("%d values, want the limit, the sum and %d namespaces: %v", len(values), maxReported, values)
	}
	for name, want := range map[string]float64{
		"knative_memory_budget_limit_bytes": 1 << 20, "knative_memory_budget_used_bytes": 60 * 61 / 2,
		"knative_memory_budget_namespace_used_bytes/ns-59": 60,
	} {
		if values[name] != want {
			t.Errorf("%s is %v, want %v", name, values[name], want)
		}
	}
}

package eventlog

import (
	"testing"

	"k8s.io/component-base/metrics"
)

// TestUsageMetrics checks that the metrics of an embedded store report its size and limit.
func TestUsageMetrics(t *testing.T) {
	const mib = 1 << 20
	l := open(t, Options{Dir: t.TempDir(), MaxBytes: 5 * mib})
	s := stream(t, l, "a")
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister(l.Metrics())
	value := func(name string) float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if family.GetName() == name {
				return family.GetMetric()[0].GetGauge().GetValue()
			}
		}
		t.Fatalf("there is no %s", name)
		return 0
	}
	if used, limit := value("knative_eventlog_used_bytes"), value("knative_eventlog_limit_bytes"); used != 0 || limit != 5*mib {
		t.Errorf("%v of %v bytes are used, want 0 of 5 MiB", used, limit)
	}
	appendAll(t, s, "", string(make([]byte, mib)))
	if used := value("knative_eventlog_used_bytes"); used < mib || used > mib+mib/10 {
		t.Errorf("%v bytes are used, want 1 MiB", used)
	}
	l.SetRetainedBytes("kept", mib)
	if used := value("knative_eventlog_used_bytes"); used > mib/10 {
		t.Errorf("%v bytes are used besides retained streams, want none", used)
	}
}

// TestNoUsageMetrics checks that there are no metrics of an external store.
func TestNoUsageMetrics(t *testing.T) {
	registry := metrics.NewKubeRegistry()
	registry.CustomMustRegister((&Log{}).Metrics())
	if families, err := registry.Gather(); err != nil || len(families) > 0 {
		t.Errorf("there are %v, error %v", families, err)
	}
}

package autoscaler

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/testutil"
)

func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, busy, resting := newFixture(), revisionNamed("busy"), revisionNamed("resting")
		registry := metrics.NewKubeRegistry()
		if err := registry.CustomRegister(w.Loop); err != nil {
			t.Fatalf("registering: %v", err)
		}
		w.setLoad(busy.Key, Sample{Concurrency: 210, RequestsPerSecond: 30, Waiting: 1})
		w.start(t)
		w.setRevision(busy)
		w.setRevision(resting)
		w.after(4*time.Second, busy.Key)

		const labels = `{configuration="hello",namespace="default",revision="`
		expect := func(name, kind, help string, series ...string) string {
			lines := []string{"# HELP knative_autoscaler_" + name + " [ALPHA] " + help, "# TYPE knative_autoscaler_" + name + " " + kind}
			for _, s := range series {
				lines = append(lines, "knative_autoscaler_"+name+labels+s)
			}
			return strings.Join(lines, "\n") + "\n"
		}
		desired := "Desired number of instances of the revision."
		want := expect("desired_instances", "gauge", desired, `busy",service="hello"} 3`, `resting",service="hello"} 0`) +
			expect("ready_instances", "gauge", "Number of ready instances of the revision.", `busy",service="hello"} 3`, `resting",service="hello"} 0`) +
			expect("panic_mode", "gauge", "1 if the revision scales on its panic window, otherwise 0.", `busy",service="hello"} 1`) +
			expect("stable_request_concurrency", "gauge", "Average number of requests in flight over the stable window.", `busy",service="hello"} 210`) +
			expect("panic_requests_per_second", "gauge", "Average number of requests per second over the panic window.", `busy",service="hello"} 30`) +
			expect("target_concurrency_per_instance", "gauge", "Target number of requests in flight per instance.", `busy",service="hello"} 70`) +
			expect("excess_burst_capacity", "gauge", "Capacity of the ready instances minus requests in flight and target burst capacity, in requests. Negative if capacity is missing.", `busy",service="hello"} -121`)
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want),
			"knative_autoscaler_desired_instances", "knative_autoscaler_ready_instances", "knative_autoscaler_panic_mode",
			"knative_autoscaler_stable_request_concurrency", "knative_autoscaler_panic_requests_per_second",
			"knative_autoscaler_target_concurrency_per_instance", "knative_autoscaler_target_requests_per_second_per_instance",
			"knative_autoscaler_excess_burst_capacity"); err != nil {
			t.Error(err)
		}
		// Knative has the metrics of concurrency only, by which the Revision scales.
		knative := ""
		for _, series := range [][]string{
			{"pods_desired", "Desired number of instances of the revision.", `busy",kn_service_name="hello"} 3`, `resting",kn_service_name="hello"} 0`},
			{"panic_mode", "1 if the revision scales on its panic window, otherwise 0.", `busy",kn_service_name="hello"} 1`},
			{"concurrency_stable", "Average number of requests in flight over the stable window.", `busy",kn_service_name="hello"} 210`},
			{"concurrency_target", "Target number of requests in flight per instance.", `busy",kn_service_name="hello"} 70`},
		} {
			name := "kn_revision_" + series[0]
			knative += "# HELP " + name + " [ALPHA] " + series[1] + "\n# TYPE " + name + " gauge\n"
			for _, value := range series[2:] {
				knative += name + `{k8s_namespace_name="default",kn_configuration_name="hello",kn_revision_name="` + value + "\n"
			}
		}
		if err := testutil.GatherAndCompare(registry, strings.NewReader(knative), "kn_revision_pods_desired", "kn_revision_panic_mode",
			"kn_revision_concurrency_stable", "kn_revision_concurrency_target", "kn_revision_rps_stable_per_second", "kn_revision_rps_target_per_second"); err != nil {
			t.Error(err)
		}
		// The lint of testutil rejects Knative's name of this one.
		if got := pods(t, registry); got["busy"] != 3 || got["resting"] != 0 || len(got) != 2 {
			t.Errorf("kn_revision_pods_count is %v", got)
		}
		changes := strings.NewReader(`# HELP knative_autoscaler_scale_changes_total [ALPHA] Number of decisions that changed the number of instances, by direction (up, down).
# TYPE knative_autoscaler_scale_changes_total counter
knative_autoscaler_scale_changes_total{configuration="hello",direction="down",namespace="default",revision="busy",service="hello"} 0
knative_autoscaler_scale_changes_total{configuration="hello",direction="down",namespace="default",revision="resting",service="hello"} 0
knative_autoscaler_scale_changes_total{configuration="hello",direction="up",namespace="default",revision="busy",service="hello"} 2
knative_autoscaler_scale_changes_total{configuration="hello",direction="up",namespace="default",revision="resting",service="hello"} 0
`)
		if err := testutil.GatherAndCompare(registry, changes, "knative_autoscaler_scale_changes_total"); err != nil {
			t.Error(err)
		}

		w.DeleteRevision(busy.Key)
		w.after(0, busy.Key)
		if err := testutil.GatherAndCompare(registry, strings.NewReader(expect("desired_instances", "gauge", desired, `resting",service="hello"} 0`)),
			"knative_autoscaler_desired_instances"); err != nil {
			t.Errorf("after deletion: %v", err)
		}
	})
}

// pods returns kn_revision_pods_count by revision.
func pods(t *testing.T, registry metrics.KubeRegistry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "kn_revision_pods_count" {
			continue
		}
		for _, m := range family.GetMetric() {
			for _, label := range m.GetLabel() {
				if label.GetName() == "kn_revision_name" {
					counts[label.GetValue()] = m.GetGauge().GetValue()
				}
			}
		}
	}
	return counts
}

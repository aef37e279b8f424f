package route

import (
	"strings"
	"testing"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// configurationOf returns the Configuration of a Revision by its name; Revisions whose names begin with x do not exist.
func configurationOf(revision string) string {
	if strings.HasPrefix(revision, "x") {
		return ""
	}
	return strings.Split(revision, "-")[0]
}

func latestOf(revision string, percent int64) target {
	return target{revision: revision, configuration: configurationOf(revision), latest: true, percent: percent}
}

// TestRollOut covers serving 9.3.3-10: the steps by which requests move to a new Revision.
func TestRollOut(t *testing.T) {
	type step struct {
		at     time.Duration
		latest string
		want   string
		due    time.Duration
	}
	pinned := target{revision: "c-9", percent: 10}
	tests := []struct {
		name     string
		percent  int64
		duration time.Duration
		before   []target
		others   []target
		steps    []step
	}{
		{"at once", 100, 0, []target{latestOf("c-1", 100)}, nil, []step{{0, "c-2", "c-2+:100", 0}}},
		{"first assignment", 100, time.Minute, nil, nil, []step{{0, "c-1", "c-1+:100", 0}}},
		{"nothing new", 100, time.Minute, []target{latestOf("c-1", 100)}, nil, []step{{0, "c-1", "c-1+:100", 0}}},
		{"equal steps", 100, 99 * time.Second, []target{latestOf("c-1", 100)}, nil, []step{
			{0, "c-2", "c-1+:99 c-2+:1", time.Second},
			{1500 * time.Millisecond, "c-2", "c-1+:98 c-2+:2", 2 * time.Second},
			{50 * time.Second, "c-2", "c-1+:49 c-2+:51", 51 * time.Second},
			{98 * time.Second, "c-2", "c-1+:1 c-2+:99", 99 * time.Second},
			{99 * time.Second, "c-2", "c-2+:100", 0},
			{100 * time.Second, "c-2", "c-2+:100", 0},
		}},
		{"short: a step a second", 100, 3 * time.Second, []target{latestOf("c-1", 100)}, nil, []step{
			{0, "c-2", "c-1+:99 c-2+:1", time.Second},
			{time.Second, "c-2", "c-1+:66 c-2+:34", 2 * time.Second},
			{2 * time.Second, "c-2", "c-1+:33 c-2+:67", 3 * time.Second},
			{3 * time.Second, "c-2", "c-2+:100", 0},
		}},
		{"long after a crash", 100, time.Minute, []target{latestOf("c-1", 100)}, nil, []step{
			{0, "c-2", "c-1+:99 c-2+:1", 60 * time.Second / 60},
			{time.Hour, "c-2", "c-2+:100", 0},
		}},
		{"a part of the requests", 90, 10 * time.Second, []target{latestOf("c-1", 90)}, []target{pinned}, []step{
			{0, "c-2", "c-1+:89 c-2+:1 c-9:10", time.Second},
			{5 * time.Second, "c-2", "c-1+:45 c-2+:45 c-9:10", 6 * time.Second},
		}},
		{"an intermediate one: the oldest loses its share first", 100, 10 * time.Second, []target{latestOf("c-1", 100)}, nil, []step{
			{0, "c-2", "c-1+:99 c-2+:1", time.Second},
			{5 * time.Second, "c-2", "c-1+:50 c-2+:50", 6 * time.Second},
			{6 * time.Second, "c-3", "c-1+:49 c-2+:50 c-3+:1", 7 * time.Second},
			{12 * time.Second, "c-3", "c-2+:40 c-3+:60", 13 * time.Second},
			{16 * time.Second, "c-3", "c-3+:100", 0},
		}},
		{"a return to an older one keeps its share", 100, 10 * time.Second, []target{latestOf("c-1", 100)}, nil, []step{
			{5 * time.Second, "c-2", "c-1+:99 c-2+:1", 6 * time.Second},
			{6 * time.Second, "c-1", "c-2+:1 c-1+:99", 16 * time.Second},
			{16 * time.Second, "c-1", "c-1+:100", 0},
		}},
		{"the old one is deleted", 100, 10 * time.Second, []target{latestOf("x-1", 100)}, nil, []step{{0, "c-2", "c-2+:100", 0}}},
		{"another Configuration", 100, 10 * time.Second, []target{latestOf("d-1", 100)}, nil, []step{{0, "c-2", "c-2+:100", 0}}},
		{"pinned before", 100, 10 * time.Second, []target{{revision: "c-1", percent: 100}}, nil, []step{{0, "c-2", "c-2+:100", 0}}},
		{"no share", 0, 10 * time.Second, []target{latestOf("c-1", 0)}, nil, []step{{0, "c-2", "c-2+:0", 0}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			before, status := tt.before, servingv1.RouteStatus{}
			for i, s := range tt.steps {
				targets := append([]target{latestOf(s.latest, tt.percent)}, tt.others...)
				moved, running, due := rollOut(targets, before, readRollouts(&status), configurationOf, tt.duration, began.Add(s.at))
				if got := show(moved); got != s.want {
					t.Errorf("step %d: targets are %s, want %s", i, got, s.want)
				}
				if want := began.Add(s.due); s.due == 0 && !due.IsZero() || s.due > 0 && !due.Equal(want) {
					t.Errorf("step %d: next is due at %v, want %v", i, due, want)
				}
				if (len(running) > 0) != (s.due > 0) {
					t.Errorf("step %d: rollouts are %+v", i, running)
				}
				if err := writeRollouts(&status, running); err != nil {
					t.Fatal(err)
				}
				before = moved
			}
		})
	}
}

// TestRolloutDuration checks that the Route's annotation takes precedence.
func TestRolloutDuration(t *testing.T) {
	network := &settings.Network{RolloutDuration: time.Minute}
	for value, want := range map[string]time.Duration{"": time.Minute, "0s": 0, "90s": 90 * time.Second} {
		route := newRoute("hello")
		if value != "" {
			route.Annotations = map[string]string{servingv1.RolloutDurationAnnotationKey: value}
		}
		if got := rolloutDuration(route, network); got != want {
			t.Errorf("duration of %q is %v, want %v", value, got, want)
		}
	}
}

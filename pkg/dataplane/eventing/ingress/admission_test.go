package ingress

import (
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
)

// TestCloseGauge checks that Close closes the files of the gauge, and that a late request does not fail.
func TestCloseGauge(t *testing.T) {
	closed := 0
	h := New(Options{})
	gauge := h.admission.close
	h.admission.close = func() { gauge(); closed++ }
	h.Close()
	h.admission.queue.Observe("late", 1)
	if closed != 1 {
		t.Errorf("the gauge was closed %d times", closed)
	}
}

// TestCostOf checks that a batch costs as much as its events, which are not counted before admission.
func TestCostOf(t *testing.T) {
	for _, test := range []struct {
		name  string
		batch bool
		bytes int
		want  flow.Cost
	}{
		{name: "event without data", want: 1},
		{name: "small event", bytes: 10 << 10, want: 1},
		{name: "large event", bytes: 1 << 20, want: 33},
		{name: "empty batch", batch: true, bytes: 2, want: 1},
		{name: "large batch", batch: true, bytes: 1 << 20, want: 2048 + 32},
	} {
		if got := costOf(test.batch, test.bytes); got != test.want {
			t.Errorf("%s: the cost is %d, want %d", test.name, got, test.want)
		}
	}
}

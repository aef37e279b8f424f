package ingress

import "testing"

// TestCloseGauge checks that Close closes the files of the gauge, and that a late request does not fail.
func TestCloseGauge(t *testing.T) {
	closed := 0
	h := New(Options{})
	gauge := h.admission.close
	h.admission.close = func() { gauge(); closed++ }
	h.Close()
	h.admission.queue.Observe("late")
	if closed != 1 {
		t.Errorf("the gauge was closed %d times", closed)
	}
}

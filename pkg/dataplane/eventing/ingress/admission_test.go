package ingress

import "testing"

// Close closes the gauge of a Handler, so that its files do not stay open. A late request is served all the same.
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

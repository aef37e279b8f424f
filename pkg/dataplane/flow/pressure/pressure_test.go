package pressure

import (
	"testing"
	"time"
)

func TestStallOf(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"some avg10=26.56 avg60=38.30 avg300=37.21 total=20820494113\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=7\n": 20820494113 * time.Microsecond,
		"some avg10=0.00 avg60=0.00 avg300=0.00 total=0":                                                                0,
		"some avg10=0.00":    0,
		"some total=many\n":  0,
		"":                   0,
		"total=3\ntotal=4\n": 3 * time.Microsecond,
	} {
		if got := stallOf([]byte(text)); got != want {
			t.Errorf("%q is %v, want %v", text, got, want)
		}
	}
}

// TestGauge calls the gauge repeatedly on this machine.
func TestGauge(t *testing.T) {
	g := New()
	defer g.Close()
	const rounds = 50
	scarce := 0
	for range rounds {
		<-time.After(10 * time.Millisecond)
		if g.Scarce() {
			scarce++
		}
	}
	t.Logf("processors were scarce in %d of %d rounds", scarce, rounds)
	if g.stalledBefore < 0 || (g.pressure != nil && g.stalledBefore == 0) {
		t.Errorf("the machine stalled for %v so far", g.stalledBefore)
	}
}

package consume

import (
	"testing"
	"time"
)

func TestAcked(t *testing.T) {
	stored, now := time.Unix(1000, 1), time.Now()
	var a acked
	check := func(when string, sequence uint64, stored time.Time, want bool) {
		t.Helper()
		if got := a.has(sequence, stored); got != want {
			t.Errorf("%s, message %d is remembered: %v, want %v", when, sequence, got, want)
		}
	}
	check("at first", 1, stored, false)
	a.age(now)
	a.add(1, stored)
	check("then", 1, stored, true)
	check("then", 2, stored, false)
	check("of another time", 1, stored.Add(1), false)
	a.age(now.Add(ackedFor - 1))
	a.age(now.Add(ackedFor))
	a.age(now.Add(ackedFor + 1))
	check("after 30 s", 1, stored, true)
	a.add(2, stored)
	a.age(now.Add(2 * ackedFor))
	check("after a minute", 1, stored, false)
	check("after a minute", 2, stored, true)
	a.age(now.Add(3 * ackedFor))
	for i := range uint64(10 * ackedSegments) {
		a.add(i, stored)
	}
	check("of many", 10*ackedSegments-ackedSegments/2, stored, true)
	if n := len(a.young) + len(a.old); n > 2*ackedSegments {
		t.Errorf("%d messages are remembered, want %d at most", n, 2*ackedSegments)
	}
}

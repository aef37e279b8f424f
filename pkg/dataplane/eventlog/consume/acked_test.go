package eventlog

import (
	"testing"
	"time"
)

// eventing Event Acknowledgement and Delivery Retry: a frame that is done is not handed over again because the server
// did not hear of it in time, not even to a consumption that began later; but the server is told again.
func TestLateAcknowledgement(t *testing.T) {
	t.Parallel()
	s := stream(t, open(t, Options{Dir: t.TempDir()}), "a")
	k, c := consume(t, s, "", ConsumeOptions{})
	appendAll(t, s, "", "slow", "slower", "failed")
	slow, slower, failed := k.next(t), k.next(t), k.next(t)
	// As by Done and Again, whose words get lost.
	slow.settle(true)
	failed.settle(false)
	if f := k.next(t); string(f.Records[0]) != "failed" || f.Attempt != 2 {
		t.Errorf("record '%s' came in attempt %d, want what failed in attempt 2", f.Records[0], f.Attempt)
	} else {
		f.Done()
	}
	eventually(t, "the server is told again", func() bool { return queues(t, s)[""] == 1 })

	slower.settle(true)
	c.Stop()
	k2, _ := consume(t, s, "", ConsumeOptions{})
	eventually(t, "the server is told by another consumption", func() bool { return len(queues(t, s)) == 0 })
	k.none(t, 0)
	k2.none(t, 0)
}

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
	for i := range uint64(10 * ackedFrames) {
		a.add(i, stored)
	}
	check("of many", 10*ackedFrames-ackedFrames/2, stored, true)
	if n := len(a.young) + len(a.old); n > 2*ackedFrames {
		t.Errorf("%d messages are remembered, want %d at most", n, 2*ackedFrames)
	}
}

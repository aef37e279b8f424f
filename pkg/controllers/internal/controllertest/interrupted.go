package controllertest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Interrupted runs work that makes a number of writes: undisturbed, and failing at each of them. It checks that a retry leads to the same
// state in both cases, without further writes. start returns a new fixture and the work, end the state afterwards.
func Interrupted(t *testing.T, writes int, start func() (*Fixture, func() error), end func(*Fixture) []any) {
	t.Helper()
	broken := errors.New("interrupted")
	run := func(interruptedAt int) []any {
		t.Helper()
		w, work := start()
		w.Sync()
		w.FailOnce(interruptedAt, broken)
		if err := work(); (interruptedAt < writes) != errors.Is(err, broken) {
			t.Errorf("interrupted at write %d: got error %v", interruptedAt, err)
		}
		for range 2 {
			w.Sync()
			if err := work(); err != nil {
				t.Fatal(err)
			}
		}
		if writes := w.Writes(); len(writes) > 0 {
			t.Errorf("writes at rest: %v", writes)
		}
		return end(w)
	}
	want := run(writes)
	for i := range writes {
		if diff := cmp.Diff(want, run(i)); diff != "" {
			t.Errorf("interrupted at write %d (-want +got):\n%s", i, diff)
		}
	}
}

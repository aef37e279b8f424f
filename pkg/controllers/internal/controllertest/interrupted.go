package controllertest

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Interrupted does work that takes a number of writes: undisturbed, and failing at each of them. It holds the work to
// leading to the same end once it is done again, and to resting there. start returns a new world and what does
// the work, end what there is in it afterwards.
func Interrupted(t *testing.T, writes int, start func() (*World, func() error), end func(*World) []any) {
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

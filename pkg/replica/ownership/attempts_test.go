package ownership

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

var paced = Pacing{Patience: 3 * time.Second, FirstPause: 10 * time.Millisecond, LastPause: 200 * time.Millisecond}

func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := Attempts{Pacing: paced}
		began := time.Now()
		for _, ms := range []int{10, 20, 40, 80, 160, 200, 200} {
			want := time.Duration(ms) * time.Millisecond
			before := time.Now()
			if err := a.Wait(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(before); took != want {
				t.Errorf("paused for %s, want %s", took, want)
			}
		}
		changed := make(chan struct{})
		close(changed)
		before := time.Now()
		if err := a.Wait(t.Context(), changed); err != nil || time.Since(before) != 0 {
			t.Errorf("a change ends the pause after %s, %v", time.Since(before), err)
		}
		var err error
		for err == nil {
			err = a.Wait(t.Context(), nil)
		}
		if took := time.Since(began); !errors.Is(err, ErrUnreachable) || took < paced.Patience || took > paced.Patience+paced.LastPause {
			t.Errorf("it ends after %s with %v", took, err)
		}
	})
}

func TestWaitEndsWithContext(t *testing.T) {
	cause := errors.New("closed")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	a := Attempts{Pacing: Pacing{Patience: time.Hour, FirstPause: time.Hour, LastPause: time.Hour}}
	if err := a.Wait(ctx, nil); !errors.Is(err, cause) {
		t.Errorf("got %v, want the cause of the context", err)
	}
}

// A request returns to a replica that forwarded it only after a pause, which increases with the number of replicas that forwarded it.
func TestWaitBeforeReturn(t *testing.T) {
	for name, test := range map[string]struct {
		path  []string
		owner string
		want  time.Duration
	}{
		"no path":      {owner: "a"},
		"another":      {path: []string{"a"}, owner: "b"},
		"back":         {path: []string{"a"}, owner: "a", want: 10 * time.Millisecond},
		"back of four": {path: []string{"a", "b", "a", "b"}, owner: "a", want: 40 * time.Millisecond},
		"back of 16":   {path: make([]string, 16), want: 200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := Attempts{Pacing: paced, Path: test.path}
				began := time.Now()
				waited, err := a.WaitBeforeReturn(t.Context(), test.owner)
				if took := time.Since(began); waited != (test.want > 0) || err != nil || took != test.want {
					t.Errorf("waited %t for %s, %v; want %s", waited, took, err, test.want)
				}
				if waited, _ := a.WaitBeforeReturn(t.Context(), test.owner); waited {
					t.Error("it waits twice")
				}
			})
		})
	}
}

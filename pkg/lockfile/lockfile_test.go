package lockfile

import (
	"errors"
	"path/filepath"
	"testing"
	"time"
)

func TestAcquire(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	first, err := Acquire(path)
	if err != nil {
		t.Fatal(err)
	}
	if second, err := Acquire(path); !errors.Is(err, ErrHeld) {
		t.Errorf("while it is held: %v, %v", second, err)
	}
	released := make(chan struct{})
	time.AfterFunc(2*interval, func() { first.Close(); close(released) })
	third, err := Acquire(path)
	if errors.Is(err, ErrHeld) {
		// This process was paused for longer than Patience.
		<-released
		third, err = Acquire(path)
	}
	if err != nil {
		t.Fatalf("once it is free: %v", err)
	}
	third.Close()
	if _, err := Acquire(filepath.Join(path, "below a file")); err == nil || errors.Is(err, ErrHeld) {
		t.Errorf("in a missing directory: %v", err)
	}
}

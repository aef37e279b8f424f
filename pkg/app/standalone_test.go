package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// A part that fails has everything else end, and Wait tells why; what the others say then, or any part says once
// it was to end, is no fault.
func TestFailingPartStopsTheRest(t *testing.T) {
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		fails bool
		want  error
	}{
		"a part fails":       {fails: true, want: broken},
		"all end when asked": {},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			p := &parts{stop: stop}
			p.run(ctx, func(ctx context.Context) error {
				<-ctx.Done()
				return ctx.Err()
			})
			if test.fails {
				p.run(ctx, func(context.Context) error { return broken })
			} else {
				stop()
			}
			if err := p.Wait(); !errors.Is(err, test.want) || errors.Is(err, context.Canceled) {
				t.Errorf("Wait returns %v, want %v", err, test.want)
			}
		})
	}
}

// The access log is a file that is closed in the end, or standard error, which is not.
func TestAccessLog(t *testing.T) {
	path := filepath.Join(t.TempDir(), "logs", "access.log")
	log := openAccessLog(path)
	if _, err := fmt.Fprintln(log, "a line"); err != nil {
		t.Fatal(err)
	}
	if err := log.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "a line\n" {
		t.Errorf("the log has %q, error %v", got, err)
	}
	if err := openAccessLog("-").Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stderr.Stat(); err != nil {
		t.Errorf("standard error is closed: %v", err)
	}
}

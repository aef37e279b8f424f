package eventlog

import (
	"errors"
	"fmt"
	"testing"
	"time"
)

// Limits of all streams and of each bound what they hold: none is created in vain, and all take records again when
// frames are done.
func TestLimits(t *testing.T) {
	const mib = 1 << 20
	for name, memory := range map[string]bool{"on disk": false, "in memory": true} {
		t.Run(name, func(t *testing.T) {
			l := open(t, Options{Dir: t.TempDir(), MaxBytes: 5 * mib, MaxStreamBytes: 2 * mib})
			l.memory.limit = 5 * mib
			var streams []*Stream
			for i := range 6 {
				s, err := l.Stream(t.Context(), StreamConfig{ID: fmt.Sprint(i), Memory: memory})
				if err != nil {
					t.Fatal(err)
				}
				streams = append(streams, s)
			}
			data := make([]byte, 100<<10)
			fill := func(s *Stream) (n int) {
				t.Helper()
				for ; n < 100; n++ {
					if err := s.Append(t.Context(), Record{Data: data}); err != nil {
						if !errors.Is(err, ErrFull) {
							t.Errorf("append: %v, want ErrFull", err)
						}
						return n
					}
				}
				t.Error("there is no limit")
				return n
			}
			var held []int
			total := 0
			for _, s := range streams {
				held = append(held, fill(s))
				total += held[len(held)-1]
			}
			if held[0] != held[1] || held[0] < 18 || held[0] > 20 {
				t.Errorf("the first streams hold %v frames of 100 KiB, want 2 MiB each", held)
			}
			if total < 48 || total > 51 {
				t.Errorf("all streams hold %d frames of 100 KiB, want 5 MiB", total)
			}
			// Others are not concerned.
			other, err := l.Stream(t.Context(), StreamConfig{ID: "other", Memory: !memory})
			if err != nil {
				t.Fatal(err)
			}
			appendAll(t, other, "", string(data))

			k, _ := consume(t, streams[0], "", ConsumeOptions{})
			k.collect(t, held[0])
			eventually(t, "the last stream takes records again", func() bool {
				return streams[5].Append(t.Context(), Record{Data: data}) == nil
			})
			eventually(t, "nothing is under way", func() bool { return streams[0].quota().underway.Load() == 0 })
		})
	}
}

// A quota counts what is under way besides what there is, and asks for that only now and then.
func TestQuota(t *testing.T) {
	there, asked := int64(90), 0
	q := &quota{limit: 100, holds: func() int64 { asked++; return there }}
	for i, step := range []struct {
		take int64
		full bool
	}{{5, false}, {6, true}, {5, false}, {1, true}} {
		if i > 0 {
			q.asked.Store(time.Now().Add(time.Hour).UnixNano())
		}
		if err := q.take(step.take); errors.Is(err, ErrFull) != step.full || !step.full && err != nil {
			t.Errorf("step %d: %v, want ErrFull: %v", i, err, step.full)
		}
	}
	if asked != 1 {
		t.Errorf("it was asked %d times for what there is, want 1", asked)
	}
	q.written(5)
	q.asked.Store(0)
	there = 50
	if err := q.take(46); !errors.Is(err, ErrFull) {
		t.Errorf("with 50 there and 5 under way, 46: %v, want ErrFull", err)
	}
	if err := q.take(45); err != nil {
		t.Errorf("with 50 there and 5 under way, 45: %v", err)
	}
}

// By default one stream whose consumers take nothing leaves three quarters of the log to others.
func TestDefaultLimitOfAStream(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), MaxBytes: 8 << 20})
	full, other := stream(t, l, "full"), stream(t, l, "other")
	data := make([]byte, 256<<10)
	var err error
	n := 0
	for ; n < 32 && err == nil; n++ {
		err = full.Append(t.Context(), Record{Data: data})
	}
	if !errors.Is(err, ErrFull) || n < 7 || n > 9 {
		t.Errorf("append %d: %v, want ErrFull after a quarter of the log", n, err)
	}
	if err := other.Append(t.Context(), Record{Data: data}); err != nil {
		t.Errorf("append to another stream: %v", err)
	}
	unbounded := open(t, Options{Dir: t.TempDir()})
	if limit, size := unbounded.opts.MaxStreamBytes, unbounded.space.Size(); limit <= 0 || limit > size/2 {
		t.Errorf("without a bound of the log, a stream may take %d bytes of a filesystem of %d", limit, size)
	}
}

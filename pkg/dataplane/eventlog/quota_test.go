package eventlog

import (
	"errors"
	"fmt"
	"testing"
)

// The limit of all streams and the limit of each are enforced. Streams can be created beyond them, and all accept
// records again when segments are acknowledged.
func TestLimits(t *testing.T) {
	const mib = 1 << 20
	for name, memory := range map[string]bool{"on disk": false, "in memory": true} {
		t.Run(name, func(t *testing.T) {
			l := open(t, Options{Dir: t.TempDir(), MaxBytes: 5 * mib, MaxStreamBytes: 2 * mib})
			l.memory.Limit = 5 * mib
			var streams []*Stream
			for i := range 6 {
				s, err := l.Stream(patient(t), StreamConfig{ID: fmt.Sprint(i), Memory: memory})
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
				t.Error("no limit applies")
				return n
			}
			var held []int
			total := 0
			for _, s := range streams {
				held = append(held, fill(s))
				total += held[len(held)-1]
			}
			if held[0] != held[1] || held[0] < 18 || held[0] > 20 {
				t.Errorf("the first streams hold %v segments of 100 KiB, want 2 MiB each", held)
			}
			if total < 48 || total > 51 {
				t.Errorf("all streams hold %d segments of 100 KiB, want 5 MiB", total)
			}
			// Others are not affected.
			other, err := l.Stream(patient(t), StreamConfig{ID: "other", Memory: !memory})
			if err != nil {
				t.Fatal(err)
			}
			appendAll(t, other, "", string(data))

			k, _ := start(t, streams[0], "", ConsumeOptions{})
			k.collect(t, held[0])
			eventually(t, "the last stream accepts records again", func() bool {
				return streams[5].Append(t.Context(), Record{Data: data}) == nil
			})
			quota := l.disk
			if memory {
				quota = l.memory
			}
			eventually(t, "no append is in flight", func() bool { return quota.Reserved() == 0 })
		})
	}
}

// By default, a stream without consumers uses at most a quarter of the log.
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
		t.Errorf("without a limit of the log, a stream may use %d bytes of a filesystem of %d", limit, size)
	}
}

package memorylimit

import (
	"bytes"
	"context"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"
)

// TestTrim covers the samples at which memory is returned to the operating system.
func TestTrim(t *testing.T) {
	const quiet, load = 1 << 20, 1 << 30
	type sample struct {
		// allocated is the number of bytes allocated in the ten seconds before.
		allocated, live, held uint64
	}
	repeat := func(n int, s sample) []sample { return slices.Repeat([]sample{s}, n) }
	small, grown := sample{quiet, 40 << 20, 60 << 20}, sample{quiet, 40 << 20, 300 << 20}
	busy := sample{load, 200 << 20, 300 << 20}
	for name, test := range map[string]struct {
		samples []sample
		// want are the samples, counted from 1, at which memory is returned.
		want []int
	}{
		"twice after the start":                {repeat(30, small), []int{1, 3}},
		"never under load":                     {repeat(100, busy), nil},
		"when load has ended":                  {slices.Concat(repeat(20, busy), repeat(20, sample{quiet, 200 << 20, 210 << 20})), []int{21, 23, 25, 27}},
		"at most once a minute later":          {repeat(20, grown), []int{1, 3, 9, 15}},
		"four times after short load":          {slices.Concat(repeat(2, small), repeat(1, busy), repeat(20, small)), []int{1, 4, 6, 8, 10}},
		"later, when the live heap is small":   {slices.Concat(repeat(12, small), repeat(3, grown), repeat(10, small)), []int{1, 3, 13}},
		"not for memory that is in use":        {slices.Concat(repeat(7, small), repeat(20, sample{quiet, 280 << 20, 300 << 20})), []int{1, 3}},
		"between the waves of a changing load": {slices.Concat(repeat(3, busy), repeat(1, small), repeat(3, busy), repeat(1, small), repeat(3, busy)), []int{4, 8}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				began, reads, total := time.Now(), 0, uint64(0)
				var got, unmapped []int
				at := func() int { return int(time.Since(began) / trimEvery) }
				read := func() usage {
					s := sample{}
					if n := at(); n > 0 {
						s = test.samples[n-1]
						if n > reads {
							reads, total = n, total+s.allocated
						}
					}
					return usage{allocated: total, live: s.live, held: s.held}
				}
				go trim(ctx, clock.RealClock{}, read, func() { got = append(got, at()) }, func() { unmapped = append(unmapped, at()) })
				time.Sleep(time.Duration(len(test.samples))*trimEvery + trimEvery/2) //nolint:forbidigo // the clock is synctest's
				cancel()
				synctest.Wait()
				if !slices.Equal(got, test.want) {
					t.Errorf("memory was returned at samples %v, want %v", got, test.want)
				}
				for i := range test.samples {
					if n := i + 1; !slices.Contains(unmapped, n) && (slices.Contains(got, n) || n%3 == 1 && len(got) == 0) {
						t.Errorf("pages of files were unmapped at samples %v, want sample %d too", unmapped, n)
					}
				}
			})
		})
	}
}

// sink keeps a slice on the heap.
var sink []byte

// TestReadUsage checks that all values exist in this version of Go.
func TestReadUsage(t *testing.T) {
	before := readUsage()
	sink = make([]byte, 64<<20)
	grown := readUsage()
	if grown.allocated-before.allocated < 64<<20 || grown.held < 64<<20 {
		t.Errorf("the usage is %+v before an allocation of 64 MiB and %+v after it", before, grown)
	}
	sink = nil
	debug.FreeOSMemory()
	if after := readUsage(); after.held > grown.held-32<<20 || after.live == 0 {
		t.Errorf("the usage is %+v after the memory was returned", after)
	}
}

// TestFree frees a buffer in a pool.
func TestFree(t *testing.T) {
	free()
	before := readUsage()
	var pool sync.Pool
	pool.Put(bytes.NewBuffer(make([]byte, 64<<20)))
	free()
	if after := readUsage(); after.held > before.held+32<<20 {
		t.Errorf("the usage is %+v after a buffer of 64 MiB was freed, and was %+v before", after, before)
	}
	runtime.KeepAlive(&pool)
}

package eventlog

import (
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// BenchmarkLog appends records of 1 KiB from 64 goroutines while they are consumed and acknowledged. It also reports
// records per segment, CPU time per record, and records per second in relation to the syncs of this disk per second.
func BenchmarkLog(b *testing.B) {
	syncs := syncsPerSecond(b)
	s := stream(b, open(b, Options{Dir: b.TempDir()}), "a")
	var consumed, segments atomic.Int64
	c, err := s.Consume("", ConsumeOptions{}, func(f *Segment) {
		consumed.Add(int64(len(f.Records)))
		segments.Add(1)
		f.Ack()
	})
	if err != nil {
		b.Fatal(err)
	}
	defer c.Stop()
	data := make([]byte, 1024)
	var left atomic.Int64
	left.Store(int64(b.N))
	before := cpu(b)
	b.ResetTimer()
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := s.Append(b.Context(), Record{Data: data}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.StopTimer()
	used := cpu(b) - before
	eventually(b, "all consumed", func() bool { return consumed.Load() >= int64(b.N) })
	rate := float64(b.N) / b.Elapsed().Seconds()
	b.ReportMetric(rate, "records/s")
	b.ReportMetric(float64(consumed.Load())/float64(segments.Load()), "records/segment")
	b.ReportMetric(float64(used.Microseconds())/float64(b.N), "cpu-us/record")
	b.ReportMetric(rate/syncs, "records/sync")
}

// BenchmarkAppend appends one record at a time, from one goroutine, which is consumed and acknowledged.
func BenchmarkAppend(b *testing.B) {
	s := stream(b, open(b, Options{Dir: b.TempDir()}), "a")
	done := make(chan struct{}, 1)
	c, err := s.Consume("", ConsumeOptions{}, func(f *Segment) { f.Ack(); done <- struct{}{} })
	if err != nil {
		b.Fatal(err)
	}
	defer c.Stop()
	data := make([]byte, 1024)
	for b.Loop() {
		if err := s.Append(b.Context(), Record{Data: data}); err != nil {
			b.Fatal(err)
		}
		<-done
	}
}

// BenchmarkQueues appends to several queues at once, which takes several messages.
func BenchmarkQueues(b *testing.B) {
	for _, n := range []int{1, 4, 12, 13, 64} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := stream(b, open(b, Options{Dir: b.TempDir()}), "a")
			var records []Record
			for i := range n {
				records = append(records, Record{Queue: fmt.Sprint("q", i), Data: make([]byte, 1024)})
			}
			for b.Loop() {
				if err := s.Append(b.Context(), records...); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkIdle reports the memory of idle streams, both new ones and ones that had a record before.
func BenchmarkIdle(b *testing.B) {
	const streams = 1000
	for name, used := range map[string]bool{"new": false, "used": true} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				l := open(b, Options{Dir: b.TempDir()})
				heap, rss, routines := memory(b)
				for i := range streams {
					s := stream(b, l, fmt.Sprint("s", i))
					if !used {
						continue
					}
					appendAll(b, s, "", "x")
					if err := s.DeleteQueue(b.Context(), ""); err != nil {
						b.Fatal(err)
					}
				}
				heap2, rss2, routines2 := memory(b)
				b.ReportMetric(float64(heap2-heap)/streams/1024, "heap-KiB/stream")
				b.ReportMetric(float64(rss2-rss)/streams/1024, "rss-KiB/stream")
				b.ReportMetric(float64(routines2-routines)/streams, "goroutines/stream")
				for i := range streams {
					if err := l.DeleteStream(b.Context(), fmt.Sprint("s", i)); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

func memory(b *testing.B) (heap, rss int64, routines int) {
	// The server keeps written data in memory for ten seconds.
	<-time.After(15 * time.Second)
	debug.FreeOSMemory()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		b.Skip(err)
	}
	_, line, _ := strings.Cut(string(status), "VmRSS:")
	var kib int64
	if _, err := fmt.Sscan(line, &kib); err != nil {
		b.Fatal(err)
	}
	return int64(m.HeapAlloc), kib << 10, runtime.NumGoroutine()
}

func cpu(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// syncsPerSecond appends 1 KiB to a file and syncs it, for half a second.
func syncsPerSecond(b *testing.B) float64 {
	f, err := os.Create(b.TempDir() + "/raw")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, 1024)
	n, started := 0, time.Now()
	for ; time.Since(started) < 500*time.Millisecond; n++ {
		if _, err := f.Write(data); err != nil {
			b.Fatal(err)
		}
		if err := syscall.Fdatasync(int(f.Fd())); err != nil {
			b.Fatal(err)
		}
	}
	return float64(n) / time.Since(started).Seconds()
}

package memorylimit

import (
	"context"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

const (
	// trimEvery is the interval of samples, trimPause is the minimum time between two trims, afterLoadPause between two of the trims that
	// load requires.
	trimEvery, trimPause, afterLoadPause = 10 * time.Second, time.Minute, 20 * time.Second
	// unmapPause is the time between two times at which pages of files are unmapped under load.
	unmapPause = 30 * time.Second
	// calmBytes is the maximum number of bytes that a calm process allocates between two samples.
	calmBytes = 64 << 20
	// A trim is worthwhile if the runtime holds spareBytes more than the live heap and a quarter.
	spareBytes = 16 << 20
	spareShare = 4
	// afterStart and afterLoad are the numbers of trims after the start and after load: memory in use at the first one, such as events to be
	// delivered again, may be free at the last. Without them the live heap would be unknown, as a calm process collects nothing for two minutes.
	afterStart, afterLoad = 2, 4
)

// usage is the memory of the Go runtime in bytes.
type usage struct {
	// allocated is the total of all allocations, live is the heap that the latest garbage collection found in use.
	allocated, live uint64
	// held is the heap that the runtime holds, in use or not.
	held uint64
}

// Trim returns memory to the operating system after load has ended, until ctx is canceled. The runtime does it too, but slowly, and
// keeps twice the heap that was in use under load. A trim collects garbage, so it waits for a calm moment. Pages of files, which nothing else
// unmaps while memory is free, are unmapped under load too: the few that are in use come back.
func Trim(ctx context.Context) {
	trim(ctx, clock.RealClock{}, readUsage, free, func() {
		if err := unmapPages(); err != nil {
			klog.FromContext(ctx).Error(err, "Kept pages of files in memory")
		}
	})
}

// free collects all garbage, and returns it to the operating system.
func free() {
	// The content of a sync.Pool, such as the buffers of the event log, survives one collection.
	runtime.GC()
	debug.FreeOSMemory()
}

// trim implements Trim.
func trim(ctx context.Context, c clock.WithTicker, read func() usage, free, unmap func()) {
	ticker := c.NewTicker(trimEvery)
	defer ticker.Stop()
	t := trimmer{allocated: read().allocated, left: afterStart}
	var unmapped time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
		}
		due := t.due(read(), c.Now())
		if due {
			free()
			t.allocated = read().allocated
		}
		if due || !t.calm && c.Since(unmapped) >= unmapPause {
			unmap()
			unmapped = c.Now()
		}
	}
}

// trimmer decides when to trim.
type trimmer struct {
	// allocated is the total of all allocations at the latest sample, calm is true if few were made before it.
	allocated uint64
	calm      bool
	// left is the number of trims that the start or the latest load requires. The live heap of the latest garbage collection may be from that time.
	left    int
	trimmed time.Time
}

// due reports whether to trim now.
func (t *trimmer) due(u usage, now time.Time) bool {
	t.calm = u.allocated-t.allocated <= calmBytes
	t.allocated = u.allocated
	if !t.calm {
		t.left = afterLoad
	}
	pause := trimPause
	if t.left > 0 {
		pause = afterLoadPause
	}
	if !t.calm || now.Sub(t.trimmed) < pause || t.left == 0 && u.held <= u.live+u.live/spareShare+spareBytes {
		return false
	}
	t.left, t.trimmed = max(t.left-1, 0), now
	return true
}

// readUsage reads the memory of the Go runtime without stopping it.
func readUsage() usage {
	samples := []metrics.Sample{
		{Name: "/gc/heap/allocs:bytes"}, {Name: "/gc/heap/live:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/unused:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
	}
	metrics.Read(samples)
	value := func(i int) uint64 { return samples[i].Value.Uint64() }
	return usage{allocated: value(0), live: value(1), held: value(2) + value(3) + value(4)}
}

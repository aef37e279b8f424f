package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/memorylimit"
)

const (
	// gcHeadroom is the number of bytes of garbage on the heap at which it is collected. Live objects are few compared to the garbage
	// of serving requests: with Go's default of 100 %, a server with a small heap spends a tenth of its processor time on collection.
	// A percentage that suits a small heap wastes memory on a large one.
	gcHeadroom = 80 << 20
	// minGCPercent and maxGCPercent limit the resulting percentage. The maximum is for a replica with only a gateway, which has about 10
	// MiB of live objects. firstGCPercent is used until the number of live bytes is known.
	minGCPercent, maxGCPercent, firstGCPercent = 40, 800, 200
	// growingGCPercent is the minimum while the number of live bytes grows by more than a tenth from one collection to the next, as after a
	// restart with many objects: most of what would be collected is alive, and each collection examines all of it.
	growingGCPercent = 100
	// busyGCPercent is the minimum while there would otherwise be a collection every busyInterval or more often: with 10,000 Services a quarter of
	// the processor time was collection while more were created. The memory is returned when the server is quiet (memorylimit.Trim).
	busyGCPercent = 70
	busyInterval  = 2 * time.Second
	// busyHeadroom is the headroom for the garbage of busyInterval, if that is more than gcHeadroom: an event that arrives during a collection is
	// delivered several milliseconds later. It is at most the memory of the process divided by busyShare, and maxBusyPercent of the live
	// bytes, since a small heap is collected quickly. It is not used while the live bytes grow: after a restart new memory costs more than collection.
	busyHeadroom   = 240 << 20
	busyShare      = 8
	maxBusyPercent = 400
)

// tuneGC sets the garbage collector to a constant headroom instead of a percentage. The environment variable GOGC
// overrides it.
func tuneGC() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(firstGCPercent)
	// The finalizer of an unreferenced object runs after every collection.
	type cycle struct{ _ *byte }
	var collected func(*cycle)
	read := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/heap/allocs:bytes"}}
	most := min(busyHeadroom, memorylimit.Process()/busyShare)
	percent, before := firstGCPercent, heap{at: time.Now()}
	collected = func(c *cycle) {
		metrics.Read(read)
		now := heap{at: time.Now(), live: read[0].Value.Uint64(), allocated: read[1].Value.Uint64()}
		if next := gcPercent(before, now, most); next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
		before = now
		runtime.SetFinalizer(c, collected)
	}
	runtime.SetFinalizer(&cycle{}, collected)
}

// heap describes the heap after a collection: the number of live bytes, and of all bytes that were ever allocated.
type heap struct {
	at              time.Time
	live, allocated uint64
}

// limitMemory keeps the Go runtime below the memory limit of the container, unless the environment variable GOMEMLIMIT sets
// another limit.
func limitMemory(ctx context.Context) {
	logger := klog.FromContext(ctx)
	if soft := memorylimit.Apply(); soft > 0 {
		logger.Info("Set the memory limit of the Go runtime below the limit of the cgroup", "bytes", soft, "cgroupBytes", memorylimit.Process())
	} else if value := os.Getenv("GOMEMLIMIT"); value != "" {
		logger.Info("The memory limit of the Go runtime is set by the environment", "GOMEMLIMIT", value)
	}
}

// gcPercent returns the percentage that leaves gcHeadroom above the number of live bytes, or more under load, in steps of ten. before is the heap
// one collection earlier, most the maximum of busyHeadroom.
func gcPercent(before, now heap, most int64) int {
	if now.live == 0 {
		return firstGCPercent
	}
	percent := func(headroom float64) int { return int(headroom*10/float64(now.live)) * 10 }
	least, rate := minGCPercent, float64(now.allocated-before.allocated)/max(now.at.Sub(before.at), time.Millisecond).Seconds()
	garbage := rate * busyInterval.Seconds()
	switch {
	case now.live > before.live+before.live/10:
		least = growingGCPercent
	case garbage > float64(now.live)*minGCPercent/100:
		least = max(busyGCPercent, min(percent(min(garbage, float64(most))), maxBusyPercent))
	}
	return min(max(percent(gcHeadroom), least), maxGCPercent)
}

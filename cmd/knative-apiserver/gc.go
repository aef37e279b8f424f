package main

import (
	"context"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

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
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent, before := firstGCPercent, uint64(0)
	collected = func(c *cycle) {
		metrics.Read(live)
		now := live[0].Value.Uint64()
		if next := gcPercent(before, now); next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
		before = now
		runtime.SetFinalizer(c, collected)
	}
	runtime.SetFinalizer(&cycle{}, collected)
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

// gcPercent returns the percentage that leaves gcHeadroom above a number of live bytes, in steps of ten. before is that number one
// collection earlier.
func gcPercent(before, live uint64) int {
	if live == 0 {
		return firstGCPercent
	}
	least := uint64(minGCPercent)
	if live > before+before/10 {
		least = growingGCPercent
	}
	return int(min(max(gcHeadroom*100/live/10*10, least), maxGCPercent))
}

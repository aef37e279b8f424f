package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcHeadroom is how much garbage, in bytes, the heap may hold before it is collected. What is live is small
	// beside the garbage of serving requests, and at Go's default of 100 % a tenth of the processor time goes
	// to collecting it while the heap is small; a percentage that suits a small heap wastes memory on a large one.
	gcHeadroom = 80 << 20
	// minGCPercent and maxGCPercent bound what that comes to.
	minGCPercent, maxGCPercent = 40, 200
)

// tuneGC sets the garbage collector to a constant headroom instead of a percentage. The environment variable GOGC
// overrides it.
func tuneGC() {
	if os.Getenv("GOGC") != "" {
		return
	}
	debug.SetGCPercent(maxGCPercent)
	// A finalizer of what nothing refers to runs after every collection.
	type cycle struct{ _ *byte }
	var collected func(*cycle)
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := maxGCPercent
	collected = func(c *cycle) {
		metrics.Read(live)
		if next := gcPercent(live[0].Value.Uint64()); next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
		runtime.SetFinalizer(c, collected)
	}
	runtime.SetFinalizer(&cycle{}, collected)
}

// gcPercent returns the percentage that leaves gcHeadroom above a number of live bytes, in steps of ten.
func gcPercent(live uint64) int {
	percent := uint64(maxGCPercent)
	if live > 0 {
		percent = gcHeadroom * 100 / live / 10 * 10
	}
	return int(min(max(percent, minGCPercent), maxGCPercent))
}

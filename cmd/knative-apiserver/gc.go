package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

const (
	// gcHeadroom is the number of bytes of garbage on the heap at which it is collected. Live objects are few compared to the garbage
	// of serving requests: with Go's default of 100 %, a server with a small heap spends a tenth of its processor time on collection.
	// A percentage that suits a small heap wastes memory on a large one.
	gcHeadroom = 80 << 20
	// minGCPercent and maxGCPercent limit the percentage that follows from it.
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

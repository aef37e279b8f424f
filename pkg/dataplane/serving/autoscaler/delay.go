package autoscaler

import (
	"slices"
	"time"
)

// delay remembers the highest scale of the latest time: its entries are in order of time, each lower than the
// one before, so that the first is the highest.
type delay []delayed

type delayed struct {
	at    time.Time
	scale int32
}

// highest adds a scale and returns the highest one since now-length.
func (d *delay) highest(now time.Time, length time.Duration, scale int32) int32 {
	kept := *d
	for len(kept) > 0 && kept[len(kept)-1].scale <= scale {
		kept = kept[:len(kept)-1]
	}
	kept = append(kept, delayed{now, scale})
	expired := 0
	for kept[expired].at.Before(now.Add(-length)) {
		expired++
	}
	*d = slices.Delete(kept, 0, expired)
	return (*d)[0].scale
}

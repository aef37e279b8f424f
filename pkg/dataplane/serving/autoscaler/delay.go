package autoscaler

import (
	"slices"
	"time"
)

// delay is a sliding-window maximum of scales: its entries are ordered by time, each lower than the one before, so the first
// is the highest.
type delay []delayed

// delayed is a scale and the time of its decision.
type delayed struct {
	at    time.Time
	scale int32
}

// highest adds a scale and returns the highest scale since now-length.
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

// ends returns a copy of the first and the last entry.
func (d delay) ends() delay {
	switch len(d) {
	case 0:
		return nil
	case 1:
		return delay{d[0]}
	}
	return delay{d[0], d[len(d)-1]}
}

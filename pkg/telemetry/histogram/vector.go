package histogram

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Vector is a set of Histograms by key, for few keys. The zero value is empty. Its methods may be called concurrently.
type Vector[K comparable] struct {
	// entries is copied to grow, under mu.
	entries atomic.Pointer[[]*entry[K]]
	mu      sync.Mutex
}

type entry[K comparable] struct {
	key       K
	histogram Histogram
}

// Of returns the Histogram of a key. Once there are limit Histograms, the one of the key that beyond returns stands for further keys. beyond must
// have few results.
func (v *Vector[K]) Of(key K, limit int, beyond func(K) K) *Histogram {
	if e := find(v.all(), key); e != nil {
		return &e.histogram
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	all := v.all()
	if len(all) >= limit {
		key = beyond(key)
	}
	if e := find(all, key); e != nil {
		return &e.histogram
	}
	e := &entry[K]{key: key}
	all = append(slices.Clone(all), e)
	v.entries.Store(&all)
	return &e.histogram
}

// Each calls do with each Histogram, in the order of their first use.
func (v *Vector[K]) Each(do func(K, *Histogram)) {
	for _, e := range v.all() {
		do(e.key, &e.histogram)
	}
}

func (v *Vector[K]) all() []*entry[K] {
	if all := v.entries.Load(); all != nil {
		return *all
	}
	return nil
}

func find[K comparable](all []*entry[K], key K) *entry[K] {
	for _, e := range all {
		if e.key == key {
			return e
		}
	}
	return nil
}

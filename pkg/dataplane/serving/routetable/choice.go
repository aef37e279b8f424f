package gateway

import "math/rand/v2"

// Requests to a host are taken in blocks of 100, and each block hands out each of the slots 0 to 99 once. So every
// block is exact. The order of a block is one of orders, rotated; which and by how much looks random, so that
// no rhythm of a client picks the same target each time.
const (
	slots  = 100
	orders = 64
)

// chooser picks targets by their percents.
type chooser [orders][slots]uint8

// newChooser returns a chooser whose orders are those of a seed.
func newChooser(seed uint64) *chooser {
	random := rand.New(rand.NewPCG(seed, orders))
	c := new(chooser)
	for i := range c {
		for slot, v := range random.Perm(slots) {
			c[i][slot] = uint8(v)
		}
	}
	return c
}

// choose returns the pool for the next request to a host, which has a target at least.
func (c *chooser) choose(h *host) *pool {
	if len(h.targets) == 1 {
		return h.targets[0].pool
	}
	slot := c.slot(h.seed, h.requests.Add(1)-1)
	for i := range h.targets {
		if slot < h.targets[i].upTo {
			return h.targets[i].pool
		}
	}
	return h.targets[len(h.targets)-1].pool
}

// slot returns the slot of the n-th request.
func (c *chooser) slot(seed, n uint64) int {
	hash := mix(seed + n/slots*0x9e3779b97f4a7c15)
	return (int(c[hash%orders][n%slots]) + int(hash>>32%slots)) % slots
}

// mix is the finalizer of SplitMix64.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

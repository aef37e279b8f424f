package routetable

import "math/rand/v2"

// Requests to a host are divided into blocks of 100, and each block uses each of the slots 0 to 99 once, so every block
// is exact. The order of a block is one of orders, rotated. Order and rotation are pseudo-random, so that a periodic
// client does not get the same target each time.
const (
	slots  = 100
	orders = 64
)

// chooser determines the slots of requests.
type chooser [orders][slots]uint8

// newChooser returns a chooser whose orders depend on a seed.
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

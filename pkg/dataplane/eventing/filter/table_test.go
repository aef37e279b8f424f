package filter

import (
	"math/rand/v2"
	"testing"
)

// TestTable compares tables with maps through random changes, and sees to it that changes leave earlier tables as
// they are.
func TestTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var now, before table[int, int]
	want, wantBefore := map[int]int{}, map[int]int{}
	check := func(have table[int, int], want map[int]int) {
		t.Helper()
		for key := range 500 {
			if got := have.get(key); got != want[key] {
				t.Fatalf("key %d has value %d, want %d", key, got, want[key])
			}
		}
	}
	for step := range 5000 {
		key := r.IntN(500)
		if r.IntN(3) == 0 {
			now = now.without(key)
			delete(want, key)
		} else {
			now = now.with(key, step+1)
			want[key] = step + 1
		}
		if step == 2500 {
			before = now
			for key, value := range want {
				wantBefore[key] = value
			}
		}
	}
	check(now, want)
	check(before, wantBefore)
	for key := range 500 {
		now = now.without(key)
	}
	if now.root != nil {
		t.Error("table without keys keeps a branch")
	}
}

// TestCollisions has keys with equal and nearly equal hashes.
func TestCollisions(t *testing.T) {
	hashes := []uint64{7, 7, 7, 7 | 1<<63, 7 | 1<<20, 8}
	var root *branch[int, int]
	for key, hash := range hashes {
		root = root.with(&leaf[int, int]{hash: hash, key: key, value: key + 100}, 0)
	}
	get := func(key int) int {
		shift := 0
		for b := root; b != nil; shift += levelBits {
			i, bit := b.place(hashes[key], shift)
			if b.occurring&bit == 0 {
				return 0
			}
			for l := b.slots[i].leaf; l != nil; l = l.next {
				if l.key == key {
					return l.value
				}
			}
			b = b.slots[i].child
		}
		return 0
	}
	root = root.with(&leaf[int, int]{hash: 7, key: 1, value: 201}, 0)
	for key, want := range []int{100, 201, 102, 103, 104, 105} {
		if got := get(key); got != want {
			t.Errorf("key %d has value %d, want %d", key, got, want)
		}
	}
	for key, hash := range hashes {
		if root = root.without(key, hash, 0); get(key) != 0 {
			t.Errorf("key %d is still there", key)
		}
		for later := key + 1; later < len(hashes); later++ {
			if get(later) == 0 {
				t.Errorf("key %d is gone with key %d", later, key)
			}
		}
	}
	if root != nil {
		t.Error("a branch is left")
	}
}

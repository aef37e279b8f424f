package filter

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/benbjohnson/immutable"
)

// TestTable compares tables with maps through random changes, and checks that changes leave earlier tables unchanged.
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
	if !now.empty() {
		t.Error("table without keys keeps an entry")
	}
}

// lowBits hashes keys with equal and nearly equal hashes.
type lowBits struct{ hasher[int] }

func (lowBits) Hash(key int) uint32 { return []uint32{7, 7, 7, 7 | 1<<31, 7 | 1<<20, 8}[key] }

func TestCollisions(t *testing.T) {
	now := table[int, int]{immutable.NewMap[int, int](lowBits{})}
	const keys = 6
	for key := range keys {
		now = now.with(key, key+100)
	}
	now = now.with(1, 201)
	for key, want := range []int{100, 201, 102, 103, 104, 105} {
		if got := now.get(key); got != want {
			t.Errorf("key %d has value %d, want %d", key, got, want)
		}
	}
	for key := range keys {
		if now = now.without(key); now.get(key) != 0 {
			t.Errorf("key %d still exists", key)
		}
		for later := key + 1; later < keys; later++ {
			if now.get(later) == 0 {
				t.Errorf("key %d was removed with key %d", later, key)
			}
		}
	}
	if !now.empty() {
		t.Error("an entry remains")
	}
}

// BenchmarkTable measures a lookup and a change in a table of 10,000 keys.
func BenchmarkTable(b *testing.B) {
	keys := make([]string, 10_000)
	var full table[string, *int]
	for i := range keys {
		keys[i] = fmt.Sprintf("com.example.order.%d", i)
		full = full.with(keys[i], new(int))
	}
	b.Run("get", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			if full.get(keys[i%len(keys)]) == nil {
				b.Fatal("missing")
			}
		}
	})
	b.Run("with", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			full.with(keys[i%len(keys)], nil)
		}
	})
}

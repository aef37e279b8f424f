package flow

import (
	"fmt"
	"testing"
)

func TestBudgetSharesWhatIsFree(t *testing.T) {
	b := NewBudget(1200, 10)
	fill := func(namespace string) int64 {
		for b.Reserve(namespace, 10) {
		}
		return b.Held(namespace)
	}
	if held := fill("a"); held != 600 {
		t.Errorf("a namespace alone holds %d bytes, want half of 1200", held)
	}
	if held := fill("b"); held != 300 {
		t.Errorf("a second namespace holds %d bytes, want half of the free 600", held)
	}
	if b.Reserve("a", 10) {
		t.Error("a namespace reserved bytes beyond its share")
	}
	b.Release("a", 600)
	if held := fill("b"); held != 600 {
		t.Errorf("a namespace holds %d bytes after the other released its own, want 600", held)
	}
	b.Release("b", 600)
	if used := b.Used(); used != 0 || len(b.namespaces) != 0 {
		t.Errorf("%d bytes and %d namespaces remain after all were released", used, len(b.namespaces))
	}
}

func TestBudgetGuaranteesTheLargestRequest(t *testing.T) {
	b := NewBudget(100, 80)
	if !b.Reserve("a", 80) {
		t.Error("the guaranteed bytes were refused while nothing else was held")
	}
	if b.Reserve("a", 1) || b.Reserve("b", 21) {
		t.Error("bytes beyond the share or the limit were reserved")
	}
	if !b.Reserve("b", 20) {
		t.Error("guaranteed bytes within the limit were refused")
	}
	if b := NewBudget(10, 80); !b.Reserve("a", 80) {
		t.Error("a limit below the guarantee was not raised")
	}
}

func TestBudgetAddsBytesThatAreHeldAlready(t *testing.T) {
	b := NewBudget(100, 10)
	b.Add("a", 150)
	if b.Reserve("b", 1) {
		t.Error("bytes were reserved beyond the limit")
	}
	b.Release("a", 150)
	if !b.Reserve("b", 1) {
		t.Error("a free budget refused a byte")
	}
}

// TestBudgetReserve checks that a namespace with little memory finds some although others added memory beyond the limit.
func TestBudgetReserve(t *testing.T) {
	const limit, small, reserve = 8 << 20, 8 << 10, 1 << 20
	b := NewBudget(limit, 1<<20)
	b.Add("a", limit+1)
	if b.Reserve("a", 1) || b.Reserve("b", small+1) {
		t.Error("bytes were reserved beyond the limit by a namespace that holds many")
	}
	if !b.Reserve("b", small) || b.Reserve("b", 1) {
		t.Error("a namespace may not hold exactly the small part")
	}
	all := 1
	for b.Reserve(fmt.Sprint("c-", all), small) {
		all++
	}
	if used := b.Used(); used > limit+reserve || used <= limit+reserve-small {
		t.Errorf("%d small namespaces took the budget to %d bytes, want nearly %d", all, used, limit+reserve)
	}
	b.Release("a", limit+1)
	if !b.Reserve("b", small) {
		t.Error("a free budget refused bytes")
	}
}

func TestDefaultLimit(t *testing.T) {
	if got := DefaultLimit(); got <= 0 || got > maxDefault {
		t.Errorf("the default limit is %d", got)
	}
}

// Caches fill up without a reservation, and only time empties them: writers that fill them must wait while they exceed the namespace's
// share, and reservations fail.
func TestBudgetCountsCaches(t *testing.T) {
	b := NewBudget(2048, 10)
	b.Cache("a", 1000)
	if b.CacheFull("a") || b.CacheFull("b") {
		t.Error("a cache is full below the share of its namespace")
	}
	b.Cache("a", 100)
	if !b.CacheFull("a") || b.CacheFull("b") {
		t.Error("a cache is not full beyond the share of its namespace, or another one is")
	}
	if b.Reserve("a", 100) || !b.Reserve("b", 100) {
		t.Error("a namespace reserved more than its share with its cache, or another one did not find any")
	}
	b.Release("b", 100)
	b.Cache("a", 3000)
	if b.Reserve("a", 1) || !b.Reserve("b", 500) || b.Reserve("b", 50) {
		t.Error("caches beyond the limit do not leave half of it to another namespace, or leave more")
	}
	b.Cache("a", -3000)
	b.Release("b", 500)
	b.Add("b", 5000)
	b.Cache("b", 2)
	if b.CacheFull("b") {
		t.Error("a small cache is full because the limit is exceeded by others")
	}
	b.Cache("a", -1100)
	b.Cache("b", -2)
	b.Release("b", 5000)
	if b.CacheFull("a") || b.Used() != 0 || len(b.namespaces)+len(b.cached) != 0 {
		t.Errorf("%d bytes in %v and %v remain after all were released", b.Used(), b.namespaces, b.cached)
	}
}

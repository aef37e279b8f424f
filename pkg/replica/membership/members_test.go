package membership

import (
	"fmt"
	"testing"
)

func TestOwnerChangesOnlyWithItsMember(t *testing.T) {
	a, b, c := Member{Name: "a"}, Member{Name: "b"}, Member{Name: "c"}
	all, fewer := NewSet("a", a, b, c), NewSet("b", b, a)
	counts := map[string]int{}
	for i := range 3000 {
		key := fmt.Sprint("namespace/", i)
		owner := all.Owner(key)
		counts[owner.Name]++
		if owner != c && fewer.Owner(key) != owner {
			t.Fatalf("%s moved from %s to %s without need", key, owner.Name, fewer.Owner(key).Name)
		}
		if all.Owns(key) != (owner == a) {
			t.Fatalf("a does not know what it owns of %s", key)
		}
	}
	for name, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("%s owns %d of 3000", name, n)
		}
	}
}

func TestNoMembers(t *testing.T) {
	if !NewSet("a").Owns("x") || !Alone().Current().Owns("x") {
		t.Error("who has no others owns nothing")
	}
}

func TestViewTellsChanges(t *testing.T) {
	v, seen := Alone(), 0
	v.Subscribe(func(*Set) { seen++ })
	set := NewSet("a", Member{Name: "a", Address: "192.0.2.1:1"})
	v.Set(set)
	v.Set(NewSet("a", Member{Name: "a", Address: "192.0.2.1:1"}))
	if seen != 1 || v.Current() != set {
		t.Errorf("%d changes were told, want 1", seen)
	}
}

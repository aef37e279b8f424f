package ownership

import (
	"fmt"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
)

func identity(key string) Place { return Place{Name: key} }

func verbatim(key string) string { return key }

// owners returns the owners as the replica named self computes them from some members.
func owners(self string, names ...string) Owners[string] {
	return Among(membersOf(self, names...), identity)
}

func membersOf(self string, names ...string) *membership.Set {
	var members []membership.Member
	for _, name := range names {
		members = append(members, membership.Member{Name: name, Address: name})
	}
	return membership.NewSet(self, members...)
}

func TestOwnerChangesOnlyWithItsMember(t *testing.T) {
	all, fewer := owners("a", "a", "b", "c"), owners("b", "b", "a")
	counts := map[string]int{}
	for i := range 3000 {
		key := fmt.Sprint("namespace/", i)
		owner, self := all.Owner(key)
		counts[owner.Name]++
		if left, _ := fewer.Owner(key); owner.Name != "c" && left != owner {
			t.Fatalf("%s moved from %s to %s unnecessarily", key, owner.Name, left.Name)
		}
		if self != (owner.Name == "a") || all.Owns(key) != self {
			t.Fatalf("Owner and Owns are inconsistent for %s", key)
		}
	}
	for name, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("%s owns %d of 3000", name, n)
		}
	}
}

// TestRanks covers keys of one name: successive ranks have different owners, as far as there are as many members, and the first rank is the owner
// of the name.
func TestRanks(t *testing.T) {
	ranked := func(rank int) func(string) Place {
		return func(key string) Place { return Place{Name: key, Rank: rank} }
	}
	members := membersOf("a", "a", "b", "c")
	counts := map[string]int{}
	for i := range 3000 {
		key := fmt.Sprint("namespace/", i)
		seen := map[string]bool{}
		for rank := range 3 {
			owner, _ := Among(members, ranked(rank)).Owner(key)
			seen[owner.Name] = true
			counts[fmt.Sprint(rank, owner.Name)]++
			if circle, _ := Among(members, ranked(rank+3)).Owner(key); circle != owner {
				t.Fatalf("%s: rank %d belongs to %s, rank %d to %s", key, rank, owner.Name, rank+3, circle.Name)
			}
		}
		if first, _ := Among(members, identity).Owner(key); len(seen) != 3 || !seen[first.Name] {
			t.Fatalf("%s: three ranks belong to %v", key, seen)
		}
		if first, _ := Among(members, ranked(0)).Owner(key); first != must(owners("a", "a", "b", "c").Owner(key)) {
			t.Fatalf("%s: the first rank belongs to %s", key, first.Name)
		}
	}
	for place, n := range counts {
		if n < 800 || n > 1200 {
			t.Errorf("%s owns %d of 3000", place, n)
		}
	}
	if owner, self := Among(membersOf("a"), ranked(2)).Owner("x"); owner.Name != "a" || !self {
		t.Errorf("without members, %s is the owner", owner.Name)
	}
}

func must(owner membership.Member, _ bool) membership.Member { return owner }

// The owners are the same in every version of the server: replicas of two versions run side by side during an upgrade.
func TestOwnersOfAllVersions(t *testing.T) {
	for key, want := range map[string]string{
		"Broker default/orders":      "a",
		"Broker default/b1":          "b",
		"Channel default/orders":     "c",
		"revision/default/app-00001": "a",
		"":                           "b",
	} {
		if owner, _ := owners("a", "a", "b", "c").Owner(key); owner.Name != want {
			t.Errorf("%q belongs to %s, want %s", key, owner.Name, want)
		}
	}
}

func TestNoMembers(t *testing.T) {
	if !owners("a").Owns("x") || !NewTable(membership.Alone(), identity).Owns("x") {
		t.Error("a replica without others owns nothing")
	}
}

func TestGained(t *testing.T) {
	before, after := owners("a", "a", "b"), owners("a", "a", "c")
	gained := after.Gained(before)
	for i := range 100 {
		key := fmt.Sprint(i)
		if want := after.Owns(key) && !before.Owns(key); gained(key) != want {
			t.Errorf("gained %s: %t, want %t", key, gained(key), want)
		}
	}
	if !after.Equal(Among(after.set, identity)) || after.Equal(before) {
		t.Error("two memberships are equal")
	}
}

func TestTableChanges(t *testing.T) {
	view := membership.NewView(membersOf("a", "a"))
	table := NewTable(view, identity)
	changed := table.Changed()
	select {
	case <-changed:
		t.Error("changed before the membership did")
	default:
	}
	view.Set(membersOf("a", "b"))
	<-changed
	if table.Owns("x") || !table.Current().Equal(Among(view.Current(), identity)) {
		t.Error("the owners are not of the current membership")
	}
	select {
	case <-table.Changed():
		t.Error("the next change has happened already")
	default:
	}
}

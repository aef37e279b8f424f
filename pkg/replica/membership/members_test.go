package membership

import "testing"

func TestViewChanges(t *testing.T) {
	v, seen := Alone(), 0
	v.Subscribe(func(*Set) { seen++ })
	set := NewSet("a", Member{Name: "a", Address: "192.0.2.1:1"})
	v.Set(set)
	v.Set(NewSet("a", Member{Name: "a", Address: "192.0.2.1:1"}))
	if seen != 1 || v.Current() != set {
		t.Errorf("%d changes were observed, want 1", seen)
	}
}

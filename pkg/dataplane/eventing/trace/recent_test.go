package trace

import (
	"slices"
	"strconv"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestRecent returns the last acceptances of a stream, and reads few blocks for them.
func TestRecent(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	stream := acceptanceOf("").Stream
	uid := acceptanceOf("").StreamUID
	recent := func(stream eventing.Key, uid types.UID, max int) (ids []string) {
		for _, r := range s.Recent(t.Context(), stream, uid, max) {
			if r.Acceptance == nil || r.Stream != stream {
				t.Errorf("got %+v", r)
			}
			ids = append(ids, r.ID)
		}
		return ids
	}
	if got := recent(stream, uid, 10); got != nil {
		t.Errorf("without records: %q", got)
	}
	add(s, "shop", "1", Delivered)
	other := acceptanceOf("other")
	other.Stream.Name = "other"
	s.Add(&other)
	written(t, s)
	add(s, "shop", "2", Delivered)
	add(s, "shop", "3", Delivered)
	written(t, s)
	for max, want := range map[int][]string{10: {"3", "2", "1"}, 3: {"3", "2", "1"}, 2: {"3", "2"}, 1: {"3"}} {
		if got := recent(stream, uid, max); !slices.Equal(got, want) {
			t.Errorf("%d recent events: %q, want %q", max, got, want)
		}
	}
	if got := recent(stream, "another", 10); got != nil {
		t.Errorf("of another UID: %q", got)
	}
	if got := recent(eventing.Key{Kind: eventing.Channel, Namespace: "shop", Name: stream.Name}, uid, 10); got != nil {
		t.Errorf("of another kind: %q", got)
	}
	var none *Store
	if got := none.Recent(t.Context(), stream, uid, 10); got != nil {
		t.Errorf("without a Store: %v", got)
	}
	for i := range 10 * maxRecentBlocks {
		// One record makes one block. The attempt of an event may be in another block than its acceptance.
		r := acceptanceOf("block" + strconv.Itoa(i))
		s.Add(&r)
		written(t, s)
	}
	if got := recent(stream, uid, 1000); len(got) != maxRecentBlocks || got[0] != "block"+strconv.Itoa(10*maxRecentBlocks-1) {
		t.Errorf("many blocks: %q", got)
	}
}

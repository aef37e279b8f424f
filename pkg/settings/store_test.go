package settings

import (
	"sync"
	"testing"
	"time"
)

func TestStoreNotifiesOfChangesOnly(t *testing.T) {
	s := NewStore(Default("example.com"))
	var seen []time.Duration
	s.Subscribe(func() { seen = append(seen, s.Get().Autoscaler.StableWindow) })
	before := s.Get()
	for _, data := range []map[string]map[string]string{
		{"config-autoscaler": nil, "config-other": {"a": "b"}},
		{"config-autoscaler": {"stable-window": "20s"}},
		{"config-autoscaler": {"stable-window": "20s"}},
		{"config-autoscaler": {"stable-window": "x"}},
		{"config-gc": nil},
		{"config-autoscaler": nil},
	} {
		s.Update(data)
	}
	if len(seen) != 2 || seen[0] != 20*time.Second || seen[1] != time.Minute {
		t.Errorf("subscriber saw %v", seen)
	}
	if before.Autoscaler.StableWindow != time.Minute || before == s.Get() {
		t.Error("settings that were returned changed")
	}
}

// The caller may modify data after Update.
func TestStoreKeepsNoDataOfItsCaller(t *testing.T) {
	s := NewStore(Default("example.com"))
	data := map[string]string{"stable-window": "20s"}
	s.Update(map[string]map[string]string{"config-autoscaler": data})
	data["stable-window"] = "x"
	s.Update(map[string]map[string]string{"config-gc": {"min-non-active-revisions": "1"}})
	if got := s.Get(); got.Autoscaler.StableWindow != 20*time.Second || got.GC.MinNonActiveRevisions != 1 {
		t.Errorf("settings are %+v", got)
	}
}

func TestStoreIsSafeForConcurrentUse(t *testing.T) {
	s := NewStore(Default("example.com"))
	calls := 0
	s.Subscribe(func() { calls++ })
	var running sync.WaitGroup
	for i, window := range []string{"20s", "21s", "22s", "23s"} {
		running.Go(func() {
			s.Update(map[string]map[string]string{"config-autoscaler": {"stable-window": window}})
			if got := s.Get().Autoscaler.StableWindow; got < 20*time.Second || got > 23*time.Second {
				t.Errorf("%d read %v", i, got)
			}
			_ = s.API()
		})
	}
	running.Wait()
	if calls != 4 {
		t.Errorf("%d calls for 4 changes", calls)
	}
}

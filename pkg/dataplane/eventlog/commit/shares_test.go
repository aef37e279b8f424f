package commit

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Reserved bytes count in addition to the held ones, which are queried no more often than necessary.
func TestShares(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		held, known, queried := map[string]int64{"a": 90}, true, 0
		s := &Shares{Limit: 100}
		s.Held = func() (map[string]int64, bool) { queried++; return held, known }
		step := func(tenant string, bytes int64, full bool, wantQueried int) {
			t.Helper()
			if err := s.reserve(tenant, bytes); errors.Is(err, ErrShareFull) != full || !full && err != nil {
				t.Errorf("reserve %d for %s: %v, want ErrShareFull: %t", bytes, tenant, err, full)
			}
			if queried != wantQueried {
				t.Errorf("the held bytes were queried %d times, want %d", queried, wantQueried)
			}
		}
		step("a", 5, false, 1)
		step("a", 6, true, 1)
		step("b", 100, false, 1)
		step("b", 1, true, 1)
		s.settle("b", 100)
		time.Sleep(quotaFreshness) //nolint:forbidigo // the clock is synctest's
		step("b", 1, false, 2)
		step("a", 5, false, 2)
		// The usage of a server that restarts is unknown.
		time.Sleep(sharesFreshness) //nolint:forbidigo // the clock is synctest's
		known = false
		step("a", 1, true, 3)
		// 10 of a and 1 of b are reserved.
		time.Sleep(sharesFreshness) //nolint:forbidigo // the clock is synctest's
		known, held = true, map[string]int64{"a": 50}
		step("a", 41, true, 4)
		step("a", 40, false, 4)
		s.settle("a", 50)
		s.settle("b", 1)
		time.Sleep(sharesFreshness) //nolint:forbidigo // the clock is synctest's
		held = nil
		step("c", 1, false, 5)
		if len(s.tenants) != 1 {
			t.Errorf("%d tenants are known, want the one with held bytes", len(s.tenants))
		}
	})
}

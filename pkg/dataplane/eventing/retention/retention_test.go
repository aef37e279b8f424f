package retention

import "testing"

// TestLevel finds the limit that fits.
func TestLevel(t *testing.T) {
	for _, test := range []struct {
		sizes []int64
		total int64
		want  int64
	}{
		{nil, 10, 10},
		{[]int64{5}, 10, 5},
		{[]int64{50}, 10, 10},
		{[]int64{2, 50, 40}, 22, 10},
		{[]int64{2, 4, 40}, 46, 40},
		{[]int64{9, 9, 9}, 0, 0},
	} {
		if got := level(test.sizes, test.total); got != test.want {
			t.Errorf("level of %v within %d is %d, want %d", test.sizes, test.total, got, test.want)
		}
	}
}

// TestLimitOf lowers the limit of the users with most if all together have too much, or while the disk is nearly full.
func TestLimitOf(t *testing.T) {
	for name, test := range map[string]struct {
		held      []int64
		each, all int64
		full      bool
		want      int64
	}{
		"nobody":       {nil, 10, 100, false, 10},
		"within":       {[]int64{8, 9}, 10, 100, false, 10},
		"too much":     {[]int64{10, 80}, 100, 80, false, 60},
		"each is less": {[]int64{10, 80}, 50, 80, false, 50},
		"nearly full":  {[]int64{40, 40}, 100, 1000, true, 30},
	} {
		t.Run(name, func(t *testing.T) {
			if got := LimitOf(test.held, test.each, test.all, test.full); got != test.want {
				t.Errorf("limit %d, want %d", got, test.want)
			}
		})
	}
}

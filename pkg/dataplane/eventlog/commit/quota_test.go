package commit

import (
	"errors"
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// A quota counts reserved bytes in addition to the held ones, which it queries at intervals.
func TestQuota(t *testing.T) {
	held, queried := int64(90), 0
	q := &Quota{Limit: 100, Held: func() int64 { queried++; return held }}
	for i, step := range []struct {
		reserve int64
		full    bool
	}{{5, false}, {6, true}, {5, false}, {1, true}} {
		if i > 0 {
			q.queried.Store(time.Now().Add(time.Hour).UnixNano())
		}
		if err := q.reserve(step.reserve); errors.Is(err, server.ErrFull) != step.full || !step.full && err != nil {
			t.Errorf("step %d: %v, want ErrFull: %v", i, err, step.full)
		}
	}
	if queried != 1 {
		t.Errorf("the held bytes were queried %d times, want 1", queried)
	}
	q.settle(5)
	q.queried.Store(0)
	held = 50
	if err := q.reserve(46); !errors.Is(err, server.ErrFull) {
		t.Errorf("with 50 held and 5 reserved, 46: %v, want ErrFull", err)
	}
	if err := q.reserve(45); err != nil {
		t.Errorf("with 50 held and 5 reserved, 45: %v", err)
	}
}

package chaos

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fault is a fault that a schedule can choose.
type fault struct {
	name string
	// longest is the maximum duration; 0 for faults that end at once.
	longest time.Duration
	// inject causes the fault for a duration and ends it. choice selects a victim.
	inject func(t *testing.T, duration time.Duration, choice uint64)
	// repair is the reaction of the server's environment to the fault, such as a restart by a supervisor. It may be nil.
	repair func(t *testing.T)
}

// step is an entry of a schedule: a fault, and the pause after the recovery.
type step struct {
	fault           string
	duration, pause time.Duration
	choice          uint64
}

func (s step) String() string {
	return fmt.Sprintf("%s for %s (choice %d), then %s", s.fault, s.duration, s.choice%100, s.pause)
}

// schedule returns the steps that a seed chooses. It contains each fault once before any is repeated.
func schedule(seed uint64, faults []fault, count int) []step {
	random := rand.New(rand.NewPCG(seed, 0))
	var steps []step
	for len(steps) < count {
		for _, i := range random.Perm(len(faults)) {
			s := step{fault: faults[i].name, choice: random.Uint64(), pause: time.Duration(500+random.IntN(1500)) * time.Millisecond}
			if longest := faults[i].longest; longest > 0 {
				s.duration = (longest/4 + time.Duration(random.Int64N(int64(longest*3/4)))).Round(time.Millisecond)
			}
			steps = append(steps, s)
		}
	}
	return steps[:count]
}

func TestScheduleIsReproducible(t *testing.T) {
	faults := []fault{{name: "a"}, {name: "b", longest: time.Second}, {name: "c", longest: 4 * time.Second}}
	first := schedule(7, faults, 30)
	if diff := cmp.Diff(first, schedule(7, faults, 30), cmp.AllowUnexported(step{})); diff != "" {
		t.Errorf("the same seed has two schedules: %s", diff)
	}
	if cmp.Equal(first, schedule(8, faults, 30), cmp.AllowUnexported(step{})) {
		t.Error("two seeds have the same schedule")
	}
	seen := map[string]bool{}
	for _, s := range first[:3] {
		seen[s.fault] = true
		if s.duration > 4*time.Second || (s.duration == 0) != (s.fault == "a") {
			t.Errorf("%s lasts %s", s.fault, s.duration)
		}
	}
	if len(seen) != 3 {
		t.Errorf("the first steps are %s", strings.Join([]string{first[0].fault, first[1].fault, first[2].fault}, ", "))
	}
}

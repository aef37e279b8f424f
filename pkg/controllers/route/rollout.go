package route

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// rolloutAnnotationKey in status holds the rollouts in progress, so that a restart resumes them.
const rolloutAnnotationKey = servingv1.GroupName + "/rollout"

// minStep is the minimum time between two steps of a rollout; a short rollout has fewer and greater steps.
const minStep = time.Second

// rollout is the move of one target's share from older Revisions to the latest one.
type rollout struct {
	Configuration string `json:"configuration"`
	Tag           string `json:"tag,omitempty"`
	// From are the shares at the beginning, oldest Revision first.
	From []share `json:"from"`
	To   string  `json:"to"`
	// Start is in Unix nanoseconds.
	Start int64 `json:"start"`
}

// share is the part of a target's percent that a Revision has.
type share struct {
	Revision string `json:"revision"`
	Percent  int64  `json:"percent"`
}

// readRollouts returns the rollouts in a status. An invalid annotation counts as none.
func readRollouts(status *servingv1.RouteStatus) []rollout {
	var rollouts []rollout
	if err := json.Unmarshal([]byte(status.Annotations[rolloutAnnotationKey]), &rollouts); err != nil {
		return nil
	}
	return rollouts
}

// writeRollouts stores rollouts in a status.
func writeRollouts(status *servingv1.RouteStatus, rollouts []rollout) error {
	if len(rollouts) == 0 {
		delete(status.Annotations, rolloutAnnotationKey)
		return nil
	}
	data, err := json.Marshal(rollouts)
	if err != nil {
		return fmt.Errorf("encode rollouts: %w", err)
	}
	if status.Annotations == nil {
		status.Annotations = map[string]string{}
	}
	status.Annotations[rolloutAnnotationKey] = string(data)
	return nil
}

// rolloutDuration returns the time in which a Route's traffic moves to a new Revision.
func rolloutDuration(route *servingv1.Route, network *settings.Network) time.Duration {
	for _, key := range []string{servingv1.RolloutDurationAnnotationKey, servingv1.RolloutDurationLegacyAnnotationKey} {
		if d, err := time.ParseDuration(route.Annotations[key]); err == nil && d >= 0 {
			return d
		}
	}
	return network.RolloutDuration
}

// rollOut replaces each target that follows a Configuration by one target for each Revision that currently has a part of its share,
// oldest Revision first. before is the current assignment, owner returns the Configuration of a Revision in it ("" if it was
// deleted), and running are the rollouts in progress. rollOut returns the targets, the rollouts that continue, and the time of the
// next step.
func rollOut(targets, before []target, running []rollout, owner func(revision string) string, duration time.Duration, now time.Time) ([]target, []rollout, time.Time) {
	if duration <= 0 {
		return targets, nil, time.Time{}
	}
	var moved []target
	var going []rollout
	var due time.Time
	for _, t := range targets {
		step := advance(t, before, running, owner, now)
		if step == nil {
			moved = append(moved, t)
			continue
		}
		shares, next := step.shares(t, duration, now)
		moved = append(moved, shares...)
		if next.IsZero() {
			continue
		}
		going = append(going, *step)
		if due.IsZero() || next.Before(due) {
			due = next
		}
	}
	return moved, going, due
}

// advance returns the rollout of a target, or nil if its share needs none. A rollout to an older Revision restarts from the shares
// that it had reached.
func advance(t target, before []target, running []rollout, owner func(revision string) string, now time.Time) *rollout {
	if !t.latest || t.percent == 0 {
		return nil
	}
	for i := range running {
		if r := running[i]; r.Configuration == t.configuration && r.Tag == t.tag && r.To == t.revision {
			r.From = slices.DeleteFunc(slices.Clone(r.From), func(s share) bool { return owner(s.Revision) == "" })
			return &r
		}
	}
	var from []share
	older := false
	for _, b := range before {
		if b.latest && b.percent > 0 && b.tag == t.tag && owner(b.revision) == t.configuration {
			from = append(from, share{Revision: b.revision, Percent: b.percent})
			older = older || b.revision != t.revision
		}
	}
	if !older {
		return nil
	}
	return &rollout{Configuration: t.configuration, Tag: t.tag, From: from, To: t.revision, Start: now.UnixNano()}
}

// shares divides a target's share at a moment of the rollout: the new Revision gets 1 percent, or its earlier share, at once and the
// rest in equal steps, from the oldest Revision first. next is zero once it has the whole share.
func (r *rollout) shares(t target, duration time.Duration, now time.Time) (shares []target, next time.Time) {
	had := int64(0)
	for _, s := range r.From {
		part := t
		part.revision, part.percent = s.Revision, s.Percent
		shares = append(shares, part)
	}
	if len(shares) > 0 {
		shares = scaled(shares, t.percent)
	}
	shares = slices.DeleteFunc(slices.Clone(shares), func(part target) bool {
		if part.revision == r.To {
			had += part.percent
		}
		return part.revision == r.To
	})
	if len(shares) == 0 {
		return []target{t}, time.Time{}
	}
	has := max(had, 1)
	steps := max(1, min(t.percent-has, int64(duration/minStep)))
	interval := duration / time.Duration(steps)
	start := time.Unix(0, r.Start)
	step := min(steps, max(0, int64(now.Sub(start)/interval)))
	if has += (t.percent - has) * step / steps; has >= t.percent {
		return []target{t}, time.Time{}
	}
	moved := has - had
	for i := range shares {
		n := min(moved, shares[i].percent)
		shares[i].percent -= n
		moved -= n
	}
	shares = slices.DeleteFunc(shares, func(part target) bool { return part.percent == 0 })
	t.percent = has
	return append(shares, t), start.Add(time.Duration(step+1) * interval)
}

package gc

import (
	"cmp"
	"slices"
	"strings"
	"time"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// decide returns the collectable Revisions of a Configuration to delete now, the longest unused first, and
// the delay until the next decision, or 0 if the passing of time changes nothing. The minimum and both
// retention times protect Revisions; the maximum applies regardless.
func decide(collectable []*servingv1.Revision, st settings.GC, now time.Time) (remove []*servingv1.Revision, next time.Duration) {
	sorted := slices.Clone(collectable)
	slices.SortFunc(sorted, func(a, b *servingv1.Revision) int {
		return cmp.Or(lastActive(a).Compare(lastActive(b)), a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			// Times are whole seconds.
			cmp.Compare(revisionref.Generation(a), revisionref.Generation(b)), strings.Compare(a.Name, b.Name))
	})
	surplus := 0
	if st.MaxNonActiveRevisions >= 0 {
		surplus = max(0, len(sorted)-st.MaxNonActiveRevisions)
	}
	removable := 0
	if st.MinNonActiveRevisions >= 0 {
		removable = max(0, len(sorted)-st.MinNonActiveRevisions)
	}
	kept := make([]*servingv1.Revision, 0, len(sorted))
	for _, revision := range sorted {
		wait, ever := retention(revision, st, now)
		switch {
		case !ever || len(remove) >= removable:
			kept = append(kept, revision)
		case wait > 0:
			kept = append(kept, revision)
			if next == 0 || wait < next {
				next = wait
			}
		default:
			remove = append(remove, revision)
		}
	}
	if over := surplus - len(remove); over > 0 {
		remove = append(remove, kept[:over]...)
	}
	return remove, next
}

// retention returns the remaining retention time of a Revision, or false if it is unlimited.
func retention(revision *servingv1.Revision, st settings.GC, now time.Time) (time.Duration, bool) {
	if st.RetainSinceCreateTime < 0 && st.RetainSinceLastActiveTime < 0 {
		return 0, false
	}
	var wait time.Duration
	if st.RetainSinceCreateTime >= 0 {
		wait = max(wait, revision.CreationTimestamp.Add(st.RetainSinceCreateTime).Sub(now))
	}
	if st.RetainSinceLastActiveTime >= 0 {
		wait = max(wait, lastActive(revision).Add(st.RetainSinceLastActiveTime).Sub(now))
	}
	return wait, true
}

// lastActive is the time at which a Revision without requests last stopped receiving them, or its creation time if it never received any.
func lastActive(revision *servingv1.Revision) time.Time {
	at, err := time.Parse(time.RFC3339, revision.Annotations[servingv1.RoutingStateModifiedAnnotationKey])
	if err != nil {
		return revision.CreationTimestamp.Time
	}
	return at
}

package configuration

import (
	"fmt"
	"maps"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
)

// Reasons of the conditions of Configurations alone.
const (
	reasonRevisionFailed  = "RevisionFailed"
	reasonRevisionDeleted = "RevisionDeleted"
)

// fault is the reason why the current template has no Revision.
type fault struct{ reason, message string }

// observation is the observed state of a Configuration's Revisions.
type observation struct {
	// revisions are the Revisions that it controls, in no particular order. The current one may be missing: informers lag behind.
	revisions []*servingv1.Revision
	// current is the Revision of the current template, or nil.
	current *servingv1.Revision
	// fault is set if current is nil.
	fault *fault
}

// conflict returns the fault of a Revision that has the name of a Configuration's current Revision but is another one. A Revision of
// an earlier generation with the same spec is the current one too: that is a rollback.
func conflict(configuration *servingv1.Configuration, revision *servingv1.Revision) *fault {
	switch {
	case !metav1.IsControlledBy(revision, configuration):
		return &fault{revisionref.ReasonRevisionNameInUse, fmt.Sprintf("There is an existing Revision %q that we do not own.", revision.Name)}
	case revisionref.Generation(revision) == configuration.Generation,
		equality.Semantic.DeepEqual(revision.Spec, configuration.Spec.Template.Spec):
		return nil
	default:
		return &fault{revisionref.ReasonRevisionNameInUse, fmt.Sprintf("There is an existing Revision %q of an earlier template that runs something else; choose another name.", revision.Name)}
	}
}

// status returns the status of a Configuration (serving 7.2-5, 7.2-7, 9.2.3). It shares memory with it.
func status(configuration *servingv1.Configuration, seen observation, now metav1.Time) servingv1.ConfigurationStatus {
	updated := configuration.Status
	if seen.current != nil {
		updated.LatestCreatedRevisionName = seen.current.Name
	}
	ready, lost := latestReady(configuration, seen)
	if !lost {
		updated.LatestReadyRevisionName = ready.name
		updated.Annotations = ready.annotate(updated.Annotations)
	}
	reconciler.Observe(&updated.Status, configuration.Generation, now, nil, readyCondition(&updated, seen, lost))
	return updated
}

// readyCondition returns Ready: whether the current template runs. lost is true if the latest ready Revision is gone and no other one
// replaces it.
func readyCondition(status *servingv1.ConfigurationStatus, seen observation, lost bool) duckv1.Condition {
	const t = duckv1.ConditionReady
	if seen.fault != nil {
		return reconciler.False(t, seen.fault.reason, seen.fault.message)
	}
	ready := reconciler.Repeat(t, reconciler.Ready(seen.current))
	switch {
	case ready.Status == corev1.ConditionTrue:
		return reconciler.True(t)
	case ready.Status == corev1.ConditionFalse:
		return reconciler.False(t, reasonRevisionFailed,
			fmt.Sprintf("Revision %q failed with message: %s.", seen.current.Name, strings.TrimSuffix(ready.Message, ".")))
	case lost:
		return reconciler.False(t, reasonRevisionDeleted, fmt.Sprintf("Revision %q was deleted.", status.LatestReadyRevisionName))
	case ready.Reason == revisionref.ReasonDeploying:
		// The reason adds nothing to Unknown, and would cost another write here and in the Service.
		return reconciler.Unknown(t, "", "")
	default:
		return ready
	}
}

// readyGenerationKey in the status' annotations is the generation that made an older Revision the latest ready
// one again. The Revision's label has the generation that it was created for.
const readyGenerationKey = servingv1.GroupName + "/latestReadyGeneration"

// candidate is a Revision that may be the latest ready one, by the generation that it ranks with.
type candidate struct {
	name             string
	rank, generation int64
}

// annotate returns status annotations with the candidate's rank, unless it equals the generation of its Revision.
func (c candidate) annotate(annotations map[string]string) map[string]string {
	value, ok := annotations[readyGenerationKey]
	switch {
	case c.rank == c.generation && !ok, c.rank != c.generation && value == strconv.FormatInt(c.rank, 10):
		return annotations
	case c.rank == c.generation && len(annotations) == 1:
		return nil
	}
	annotations = maps.Clone(annotations)
	if c.rank == c.generation {
		delete(annotations, readyGenerationKey)
		return annotations
	}
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[readyGenerationKey] = strconv.FormatInt(c.rank, 10)
	return annotations
}

// latestReady returns the most recently created Revision that is ready (serving 7.2-7). The current Revision counts as the most recent
// one, also after a rollback. The latest ready Revision stays until a more recent one is ready, even if it fails meanwhile: an older
// one would be another application. lost is true if it was deleted and no other Revision is ready.
func latestReady(configuration *servingv1.Configuration, seen observation) (latest candidate, lost bool) {
	recorded := configuration.Status.LatestReadyRevisionName
	latest = candidate{rank: -1, generation: -1}
	consider := func(revision *servingv1.Revision) {
		c := candidate{name: revision.Name, generation: revisionref.Generation(revision)}
		c.rank = c.generation
		switch {
		case seen.current != nil && c.name == seen.current.Name:
			c.rank = configuration.Generation
		case c.name == recorded:
			c.rank = recordedRank(configuration, c.rank)
		}
		if (isReady(revision) || c.name == recorded) && c.rank > latest.rank {
			latest = c
		}
	}
	for _, revision := range seen.revisions {
		if seen.current == nil || revision.Name != seen.current.Name {
			consider(revision)
		}
	}
	if seen.current != nil {
		consider(seen.current)
	}
	return latest, latest.name == "" && recorded != ""
}

// recordedRank is the rank that the latest ready Revision had when it became so.
func recordedRank(configuration *servingv1.Configuration, generation int64) int64 {
	rank, err := strconv.ParseInt(configuration.Status.Annotations[readyGenerationKey], 10, 64)
	if err != nil {
		return generation
	}
	return rank
}

func isReady(revision *servingv1.Revision) bool {
	ready := reconciler.Ready(revision)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

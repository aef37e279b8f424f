package streams

import (
	"maps"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// Object is a Broker or a Channel.
type Object interface {
	metav1.Object
	GetStatus() *duckv1.Status
}

// Same reports whether two states of an object are equivalent for its consumers as far as its metadata and some of its conditions say: consumers
// depend on its identity, its annotations and whether it is being deleted.
func Same(old, current Object, conditions ...duckv1.ConditionType) bool {
	for _, t := range conditions {
		if !equality.Semantic.DeepEqual(old.GetStatus().Conditions.Get(t), current.GetStatus().Conditions.Get(t)) {
			return false
		}
	}
	return old.GetUID() == current.GetUID() && maps.Equal(old.GetAnnotations(), current.GetAnnotations()) &&
		(old.GetDeletionTimestamp() == nil) == (current.GetDeletionTimestamp() == nil)
}

package destination

import (
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
)

// AllowFromAnnotationKey on an object lets objects of other namespaces refer to it: a list of namespaces, separated by
// commas, or "*" for all. Users that may write the object decide that. It has no effect
// with Options.AllowCrossNamespace, which allows all references.
const AllowFromAnnotationKey = eventingv1.GroupName + "/allow-from"

// granted reports whether an object with the given value of the annotation may be referenced, and records a refusal.
func (refs *References) granted(value string, exists bool) bool {
	if exists && grants(value, refs.referrer.Namespace) {
		return true
	}
	refs.denied = refs.denied || exists
	return false
}

// annotation is what an object of the host cluster says, which may be nil.
func annotation(obj *unstructured.Unstructured) string {
	if obj == nil {
		return ""
	}
	return obj.GetAnnotations()[AllowFromAnnotationKey]
}

// grants reports whether the value of AllowFromAnnotationKey contains a namespace.
func grants(value, namespace string) bool {
	for allowed := range strings.SplitSeq(value, ",") {
		if allowed = strings.TrimSpace(allowed); allowed == "*" || allowed == namespace {
			return true
		}
	}
	return false
}

// notGranted is the error of a reference to another namespace that is not granted. It says the same whether or not there
// is such an object: what another namespace has is not to be found out this way.
func (refs *References) notGranted(ref *duckv1.KReference) *Unresolved {
	return unresolved(ReasonNotGranted, "%s is in another namespace than %q. If it exists, its annotation %s has to list %q; "+
		"the server's flag --allow-cross-namespace-destinations makes such references free",
		describe(ref), refs.referrer.Namespace, AllowFromAnnotationKey, refs.referrer.Namespace)
}

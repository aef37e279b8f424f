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

// grants decides which objects the objects of one namespace may refer to.
type grants struct {
	// namespace is the namespace of the referrer.
	namespace string
	// all is Options.AllowCrossNamespace.
	all bool
	// denied is true after a reference to an object that exists was not granted.
	denied bool
}

// check returns *Unresolved unless an object with the given value of the annotation may be referenced.
func (g *grants) check(ref *duckv1.KReference, value string, exists bool) error {
	if ref.Namespace == g.namespace || g.all || exists && lists(value, g.namespace) {
		return nil
	}
	g.denied = g.denied || exists
	return g.missing(ref)
}

// annotation returns AllowFromAnnotationKey of an object of the host cluster, which may be nil.
func annotation(obj *unstructured.Unstructured) string {
	if obj == nil {
		return ""
	}
	return obj.GetAnnotations()[AllowFromAnnotationKey]
}

// lists reports whether the value of AllowFromAnnotationKey contains a namespace.
func lists(value, namespace string) bool {
	for allowed := range strings.SplitSeq(value, ",") {
		if allowed = strings.TrimSpace(allowed); allowed == "*" || allowed == namespace {
			return true
		}
	}
	return false
}

// missing returns the error of a reference to another namespace that is not granted. Its text does not depend on whether
// the object exists, so that it does not disclose the objects of other namespaces.
func (g *grants) missing(ref *duckv1.KReference) *Unresolved {
	return unresolved(ReasonNotGranted, "%s is in another namespace than %q. If it exists, its annotation %s has to list %q; "+
		"the server's flag --allow-cross-namespace-destinations makes such references free",
		describe(ref), g.namespace, AllowFromAnnotationKey, g.namespace)
}

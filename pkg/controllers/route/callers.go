package route

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// callers returns the users who may send requests to a Route, or nil for all clients. The annotation of the Route overrides the
// Namespace's, which overrides the settings. Unknown values restrict: the annotations of Namespaces are not validated.
func (r *Reconciler) callers(route *servingv1.Route, named *addresses, current *settings.Settings) (*routing.Callers, error) {
	invocation, decided := route.Annotations[servingv1.InvocationAnnotationKey]
	if !decided {
		var err error
		if invocation, decided, err = r.invocationOf(route.Namespace); err != nil {
			return nil, err
		}
	}
	if !decided {
		invocation = cmp.Or(current.Network.Invocation, servingv1.InvocationOpen)
	}
	if invocation == servingv1.InvocationOpen {
		return nil, nil
	}
	callers := &routing.Callers{Audiences: r.URLs.audiences(route, named), Group: servingv1.GroupName, Resource: "routes", Name: route.Name}
	if owner := metav1.GetControllerOfNoCopy(route); owner != nil && owner.Kind == "Service" {
		callers.Resource, callers.Name = "services", owner.Name
	}
	return callers, nil
}

// audiences returns the public URL of a Route, if any, and its URL within the cluster; then both with the other scheme: tokens stay
// valid when the scheme changes.
func (u URLs) audiences(route *servingv1.Route, named *addresses) []string {
	var all []string
	for _, url := range []string{named.url, u.Of("http", route.Name+"."+route.Namespace+".svc."+u.ClusterDomain)} {
		if url != "" && !slices.Contains(all, url) {
			all = append(all, url)
		}
	}
	for _, url := range slices.Clone(all) {
		if host, ok := strings.CutPrefix(url, "http://"); ok {
			all = append(all, "https://"+host)
		} else if host, ok := strings.CutPrefix(url, "https://"); ok {
			all = append(all, "http://"+host)
		}
	}
	return all
}

// invocationOf returns the annotation of a Namespace. A Namespace that is not known yet is an error, because it may restrict callers.
func (r *Reconciler) invocationOf(namespace string) (invocation string, decided bool, err error) {
	if r.Namespaces == nil {
		return "", false, nil
	}
	obj, known, err := r.Namespaces.GetStore().GetByKey(namespace)
	if err != nil {
		return "", false, err
	}
	object, ok := obj.(metav1.Object)
	if !known || !ok {
		return "", false, fmt.Errorf("read who may call the Routes of Namespace %q: it is not known yet", namespace)
	}
	invocation, decided = object.GetAnnotations()[servingv1.InvocationAnnotationKey]
	return invocation, decided, nil
}

// watchNamespaces enqueues the Routes of a Namespace when its annotation changes.
func (r *Reconciler) watchNamespaces(controller *reconciler.Controller) error {
	if r.Namespaces == nil {
		return nil
	}
	changes := reconciler.Changes(r.Namespaces, func(old, current metav1.Object) bool {
		before, had := old.GetAnnotations()[servingv1.InvocationAnnotationKey]
		after, has := current.GetAnnotations()[servingv1.InvocationAnnotationKey]
		return before == after && had == has
	})
	return controller.Watch(changes, func(obj metav1.Object) []types.NamespacedName {
		routes, err := r.Routes.Routes(obj.GetName()).List(labels.Everything())
		if err != nil {
			klog.Background().Error(err, "Failed to list Routes", "namespace", obj.GetName())
			return nil
		}
		keys := make([]types.NamespacedName, 0, len(routes))
		for _, route := range routes {
			keys = append(keys, keyOf(route))
		}
		return keys
	})
}

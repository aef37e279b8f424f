package route

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// ReasonPlaceholderFailed means that a core Service of the Route cannot be written, so that its name does not
// resolve within the cluster.
const ReasonPlaceholderFailed = "PlaceholderFailed"

// RouteLabelKey on the core Services of a Route holds its name.
const RouteLabelKey = servingv1.GroupName + "/route"

// Placeholders are core Services by which the names of Routes resolve in the host cluster.
type Placeholders interface {
	// Apply creates and updates the Services of a Route with the given names, and deletes its others. It returns
	// *hostservice.NotOwned if another object has a name.
	Apply(ctx context.Context, route metav1.Object, names []string) error
	// Labelled returns the names of a Route's Services to which users added a label with this value.
	Labelled(route metav1.Object, key, value string) ([]string, error)
	// Forget stops waiting for the names that a deleted object could not get.
	Forget(key types.NamespacedName)
	// Track enqueues the Routes whose Services change.
	Track(controller *reconciler.Controller) error
}

// addresses returns the host names of a Route and its tags. A user makes one of them private by the visibility label on its core
// Service.
func (r *Reconciler) addresses(route *servingv1.Route, s *settings.Settings) (addresses, error) {
	if r.Placeholders == nil {
		return addressesOf(route, s, r.URLs, nil), nil
	}
	private, err := r.Placeholders.Labelled(route, servingv1.VisibilityLabelKey, servingv1.VisibilityClusterLocal)
	if err != nil {
		return addresses{}, err
	}
	return addressesOf(route, s, r.URLs, private), nil
}

// place creates the core Services of a Route. fault is for its status; the caller retries after err.
func (r *Reconciler) place(ctx context.Context, route *servingv1.Route, named *addresses, lost map[string]hostnames.Owner) (fault *duckv1.Condition, err error) {
	if r.Placeholders == nil {
		return nil, nil
	}
	err = r.Placeholders.Apply(ctx, route, named.placeholders(lost))
	const t = servingv1.RouteConditionIngressReady
	notOwned, conflict := errors.AsType[*hostservice.NotOwned](err)
	switch {
	case err == nil:
		return nil, nil
	case conflict:
		// A change of the conflicting Service enqueues the Route.
		condition := reconciler.False(t, reconciler.ReasonNotOwned, notOwned.Error())
		return &condition, nil
	case apierrors.IsConflict(err):
		// The next attempt decides.
		return nil, err
	}
	condition := reconciler.Unknown(t, ReasonPlaceholderFailed, fmt.Sprintf("A name of the Route does not resolve within the cluster yet: %v", err))
	if reconciler.Refused(err) {
		condition = reconciler.False(t, ReasonPlaceholderFailed, fmt.Sprintf("A name of the Route does not resolve within the cluster: %v", err))
	}
	return &condition, err
}

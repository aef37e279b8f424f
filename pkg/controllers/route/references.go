package route

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/revisionref"
)

// references returns the Revisions that a Route refers to: its targets, and the Revisions that its spec names, which are kept for
// it (serving 7.4-2).
func references(route *servingv1.Route, targets []target) sets.Set[string] {
	refs := sets.New[string]()
	for _, t := range targets {
		refs.Insert(t.revision)
	}
	for _, t := range route.Spec.Traffic {
		if t.RevisionName != "" {
			refs.Insert(t.RevisionName)
		}
	}
	return refs
}

// refer labels Revisions with whether Routes refer to them, and lists these Routes in an annotation, so that any replica can remove a
// deleted Route. latest maps each Configuration that the Route follows to the Revision that the Route uses; older Revisions without
// requests are superseded.
func (r *Reconciler) refer(ctx context.Context, key types.NamespacedName, service string, refs sets.Set[string], latest map[string]string) error {
	referring, err := reconciler.Indexed[*servingv1.Revision](r.RevisionIndex, revisionsByRoute, key.String())
	if err != nil {
		return err
	}
	for _, revision := range referring {
		if !refs.Has(revision.Name) {
			routes := slices.DeleteFunc(routesOf(revision), func(name string) bool { return name == key.Name })
			if err := r.label(ctx, revision, routes); err != nil {
				return err
			}
		}
	}
	for _, name := range sets.List(refs) {
		revision, err := r.Revisions.Revisions(key.Namespace).Get(name)
		switch {
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return err
		case service != "" && revision.Labels[servingv1.ServiceLabelKey] != service:
			continue
		}
		routes := routesOf(revision)
		if !slices.Contains(routes, key.Name) {
			routes = append(routes, key.Name)
			slices.Sort(routes)
		}
		if err := r.label(ctx, revision, routes); err != nil {
			return err
		}
	}
	return r.supersede(ctx, key.Namespace, refs, latest)
}

// supersede moves pending Revisions to reserve if they are older than the followed Revision of their Configuration.
func (r *Reconciler) supersede(ctx context.Context, namespace string, refs sets.Set[string], latest map[string]string) error {
	for configuration, name := range latest {
		followed, err := r.Revisions.Revisions(namespace).Get(name)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return err
		}
		pending, err := reconciler.Indexed[*servingv1.Revision](r.RevisionIndex, pendingByConfiguration, namespace+"/"+configuration)
		if err != nil {
			return err
		}
		for _, revision := range pending {
			if refs.Has(revision.Name) || revisionref.Generation(revision) >= revisionref.Generation(followed) {
				continue
			}
			if err := r.label(ctx, revision, routesOf(revision)); err != nil {
				return err
			}
		}
	}
	return nil
}

// label records the Routes that refer to a Revision in the Revision, unless they are recorded already.
func (r *Reconciler) label(ctx context.Context, revision *servingv1.Revision, routes []string) error {
	patch, err := routingPatch(revision, routes, r.Clock.Now())
	if patch == nil || err != nil {
		return err
	}
	_, err = r.Client.Revisions(revision.Namespace).Patch(ctx, revision.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("label Revision %q: %w", revision.Name, err)
	}
	return nil
}

// routingPatch returns a merge patch that records the Routes that refer to a Revision in the Revision, or nil if they are recorded.
// It has the Revision's resourceVersion, since several Routes may change the same list.
func routingPatch(revision *servingv1.Revision, routes []string, now time.Time) ([]byte, error) {
	state := servingv1.RoutingStateReserve
	var list any
	if len(routes) > 0 {
		state, list = servingv1.RoutingStateActive, strings.Join(routes, ",")
	}
	sameState := revision.Labels[servingv1.RoutingStateLabelKey] == state
	if sameState && slices.Equal(routes, routesOf(revision)) {
		return nil, nil
	}
	annotations := map[string]any{servingv1.RoutesAnnotationKey: list}
	if !sameState {
		annotations[servingv1.RoutingStateModifiedAnnotationKey] = now.UTC().Format(time.RFC3339)
	}
	metadata := map[string]any{
		"labels":      map[string]any{servingv1.RoutingStateLabelKey: state},
		"annotations": annotations,
	}
	if revision.ResourceVersion != "" {
		metadata["resourceVersion"] = revision.ResourceVersion
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata})
	if err != nil {
		return nil, fmt.Errorf("encode the patch of Revision %q: %w", revision.Name, err)
	}
	return patch, nil
}

// routesOf returns the Routes that a Revision lists as its referrers.
func routesOf(revision *servingv1.Revision) []string {
	list := revision.Annotations[servingv1.RoutesAnnotationKey]
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

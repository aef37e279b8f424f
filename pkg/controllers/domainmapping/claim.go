package domainmapping

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

const (
	// ReasonDomainAlreadyClaimed means that the DomainMapping may not use its host name.
	ReasonDomainAlreadyClaimed = "DomainAlreadyClaimed"
	// ReasonWildcardNotAllowed means that the DomainMapping may not use the names below its host name.
	ReasonWildcardNotAllowed = "WildcardNotAllowed"
)

const (
	// inUse is the message of a host name that the namespace may not use.
	inUse = "The domain name is already in use by another DomainMapping"
	// notAllowed is the message of a wildcard without the consent of an administrator.
	notAllowed = "A wildcard requires the annotation " + networkingv1alpha1.WildcardAnnotationKey + `: "true" on the ClusterDomainClaim of the name`
)

const (
	// coreServiceSuffix ends the host names by which core Services are called within the cluster. The server creates no claims of them:
	// they belong to the namespaces in them, also before a Route serves them.
	coreServiceSuffix = ".svc"
	// internal is the message of such a host name.
	internal = "The domain name is a name of a core Service: it needs a ClusterDomainClaim of an administrator"
)

// claim returns DomainClaimed. A DomainMapping gets its host name if the ClusterDomainClaim of the name is for its namespace, and no
// Route has the name. Without a ClusterDomainClaim, it is created if the operator allows that and no wildcard of another namespace has the
// name; then a DomainMapping that serves the name keeps it.
func (r *Reconciler) claim(ctx context.Context, mapping *servingv1beta1.DomainMapping, writes bool) (duckv1.Condition, error) {
	const t = servingv1beta1.DomainMappingConditionDomainClaimed
	current, owner := r.Settings(), ownerOf(keyOf(mapping))
	claim, ok, err := reconciler.Listed(r.DomainClaims, mapping.Name)
	if err != nil {
		return duckv1.Condition{}, err
	}
	if !mayUse(mapping, claim, ok, current) {
		r.Claims.Drop(owner)
		switch {
		case ok && claim.Spec.Namespace != mapping.Namespace, !ok && !current.Network.AutocreateClusterDomainClaims:
			return reconciler.False(t, ReasonDomainAlreadyClaimed, inUse), nil
		case ok:
			return reconciler.False(t, ReasonWildcardNotAllowed, notAllowed), nil
		}
		reserved, err := r.reserved(mapping)
		if err != nil {
			return duckv1.Condition{}, err
		}
		other, found, err := r.Claims.Owner(mapping.Name, current)
		switch {
		case err != nil:
			return duckv1.Condition{}, err
		case reserved:
			return reconciler.False(t, ReasonDomainAlreadyClaimed, inUse), nil
		case found:
			return conflict(mapping.Name, other), nil
		case strings.HasSuffix(mapping.Name, coreServiceSuffix):
			return reconciler.False(t, ReasonDomainAlreadyClaimed, internal), nil
		case !writes:
			return reconciler.Unknown(t, "", ""), nil
		}
		return reconciler.Unknown(t, "", ""), r.create(ctx, mapping)
	}
	lost, err := r.Claims.Set(claimOf(mapping), current)
	if err != nil {
		return duckv1.Condition{}, err
	}
	if other, isLost := lost[mapping.Name]; isLost {
		return conflict(mapping.Name, other), nil
	}
	if !ok && writes {
		if err := r.create(ctx, mapping); err != nil {
			return duckv1.Condition{}, err
		}
	}
	return reconciler.True(t), nil
}

// permits reports whether a ClusterDomainClaim of a DomainMapping's host name allows what the DomainMapping serves.
func permits(claim *networkingv1alpha1.ClusterDomainClaim, mapping *servingv1beta1.DomainMapping) bool {
	return claim.Spec.Namespace == mapping.Namespace &&
		(!networkingv1alpha1.IsWildcard(mapping.Annotations) || networkingv1alpha1.IsWildcard(claim.Annotations))
}

// reserved reports whether a host name is below a wildcard of another namespace. The ClusterDomainClaim of the longest name decides.
func (r *Reconciler) reserved(mapping *servingv1beta1.DomainMapping) (bool, error) {
	for _, parent, found := strings.Cut(mapping.Name, "."); found; _, parent, found = strings.Cut(parent, ".") {
		claim, ok, err := reconciler.Listed(r.DomainClaims, parent)
		if err != nil {
			return false, err
		}
		if ok && networkingv1alpha1.IsWildcard(claim.Annotations) {
			return claim.Spec.Namespace != mapping.Namespace, nil
		}
	}
	return false, nil
}

// hosts returns the names of the hosts that a DomainMapping serves.
func hosts(mapping *servingv1beta1.DomainMapping) []string {
	if networkingv1alpha1.IsWildcard(mapping.Annotations) {
		return []string{mapping.Name, "*." + mapping.Name}
	}
	return []string{mapping.Name}
}

// mayUse reports whether the namespace of a DomainMapping may use its host name. claim is the ClusterDomainClaim of the name, if ok. While
// the server creates claims, a DomainMapping keeps its host name without its claim: otherwise another namespace could claim it first.
func mayUse(mapping *servingv1beta1.DomainMapping, claim *networkingv1alpha1.ClusterDomainClaim, ok bool, s *settings.Settings) bool {
	if ok {
		return permits(claim, mapping)
	}
	return s.Network.AutocreateClusterDomainClaims && claimed(mapping) && !networkingv1alpha1.IsWildcard(mapping.Annotations)
}

// create creates the ClusterDomainClaim of a DomainMapping. The informer's event enqueues the DomainMapping.
func (r *Reconciler) create(ctx context.Context, mapping *servingv1beta1.DomainMapping) error {
	claim := &networkingv1alpha1.ClusterDomainClaim{
		ObjectMeta: metav1.ObjectMeta{Name: mapping.Name},
		Spec:       networkingv1alpha1.ClusterDomainClaimSpec{Namespace: mapping.Namespace},
	}
	_, err := r.ClaimsClient.ClusterDomainClaims().Create(ctx, claim, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err):
		// The informer has not received it yet.
		return nil
	case err != nil:
		return fmt.Errorf("create ClusterDomainClaim %q: %w", mapping.Name, err)
	}
	r.Recorder.Eventf(mapping, corev1.EventTypeNormal, reconciler.ReasonCreated, "Created ClusterDomainClaim %q", mapping.Name)
	return nil
}

func conflict(name string, other hostnames.Owner) duckv1.Condition {
	return reconciler.False(servingv1beta1.DomainMappingConditionDomainClaimed, ReasonDomainAlreadyClaimed,
		fmt.Sprintf("Host name %q belongs to %s, which claimed it first.", name, other))
}

// Participant returns the participation of DomainMappings in the claims of host names.
func (r *Reconciler) Participant() hostnames.Participant {
	return hostnames.Participant{List: r.allClaims, Enqueue: func(key routing.Key) { r.Queue.Enqueue(key) }}
}

// allClaims returns the claims of the DomainMappings whose namespace may use the host name.
func (r *Reconciler) allClaims(s *settings.Settings) ([]hostnames.Claim, error) {
	mappings, err := r.Mappings.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	var claims []hostnames.Claim
	for _, mapping := range mappings {
		claim, ok, err := reconciler.Listed(r.DomainClaims, mapping.Name)
		if err != nil {
			return nil, err
		}
		if mapping.DeletionTimestamp == nil && mayUse(mapping, claim, ok, s) {
			claims = append(claims, claimOf(mapping))
		}
	}
	return claims, nil
}

func ownerOf(key routing.Key) hostnames.Owner {
	return hostnames.Owner{Kind: hostnames.DomainMapping, Key: key}
}

func claimOf(mapping *servingv1beta1.DomainMapping) hostnames.Claim {
	claim := hostnames.Claim{Owner: ownerOf(keyOf(mapping)), Created: mapping.CreationTimestamp.Time, Hosts: []string{mapping.Name}}
	if claimed(mapping) {
		claim.Held = claim.Hosts
	}
	return claim
}

// claimed reports whether a DomainMapping has its host name according to its status.
func claimed(mapping *servingv1beta1.DomainMapping) bool {
	c := mapping.Status.Conditions.Get(servingv1beta1.DomainMappingConditionDomainClaimed)
	return c != nil && c.Status == corev1.ConditionTrue
}

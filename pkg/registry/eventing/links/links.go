// Package links decides which Triggers and Subscriptions may receive events of Brokers and Channels of other namespaces.
package links

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Verb is the permission for a Broker or Channel that a user needs to link to it from another namespace.
const Verb = "knsubscribe"

// Links validates links. The zero value allows none.
type Links struct {
	// Authorizer decides about Verb. Nil denies it.
	Authorizer authorizer.Authorizer
	// Enabled reports whether links are allowed (cross-namespace-event-links). Nil means no.
	Enabled func() bool
}

// Link is the reference of an object to a Broker or Channel.
type Link struct {
	// Object is the namespace of the object, Target the Broker or Channel, and Resource the resource of that.
	Object   string
	Target   types.NamespacedName
	Resource schema.GroupResource
	// Set is true if the object has the field at Path, whose values are only allowed while links are.
	Set  bool
	Path *field.Path
}

// Validate returns the errors of a link that the user of ctx writes. spec is the spec of the object, oldSpec the stored one, or nil if the
// object is new: an unchanged spec is allowed, so that others may change the metadata. All other changes need the permission, because
// they may redirect the events.
func (l *Links) Validate(ctx context.Context, link Link, spec, oldSpec any) field.ErrorList {
	if !link.Set || oldSpec != nil && equality.Semantic.DeepEqual(spec, oldSpec) {
		return nil
	}
	if l.Enabled == nil || !l.Enabled() {
		return field.ErrorList{field.Forbidden(link.Path, "may only be set if cross-namespace-event-links of config-features is enabled")}
	}
	// Other rules report a missing name.
	if link.Target.Namespace == link.Object || link.Target.Name == "" {
		return nil
	}
	user, ok := request.UserFrom(ctx)
	if !ok || l.Authorizer == nil {
		return field.ErrorList{field.Forbidden(link.Path, "the user is unknown")}
	}
	decision, _, err := l.Authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: user, Verb: Verb, APIGroup: link.Resource.Group, Resource: link.Resource.Resource,
		Namespace: link.Target.Namespace, Name: link.Target.Name, ResourceRequest: true,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return field.ErrorList{field.InternalError(link.Path, fmt.Errorf("review the permission %s: %w", Verb, err))}
	}
	return field.ErrorList{field.Forbidden(link.Path, fmt.Sprintf("user %s is not authorized to get target resource in namespace: %s: the verb %s for %s %q is required",
		user.GetName(), link.Target.Namespace, Verb, link.Resource, link.Target.Name))}
}

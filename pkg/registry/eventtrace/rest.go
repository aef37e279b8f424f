// Package eventtrace implements the subresource trace of Brokers and Channels.
package eventtrace

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Traces answers what happened to events.
type Traces interface {
	// Trace returns what happened to the events that options select in a stream, and to all that followed. Objects of other namespaces
	// are hidden unless readable returns true.
	Trace(ctx context.Context, stream eventing.Key, options *duckv1.EventTraceOptions, readable func(eventing.Key) bool) (*duckv1.EventTrace, error)
}

// Late has Traces that are set after the API is served, or never. The zero value has none.
type Late = registry.Late[Traces]

// REST serves the traces of the events of a Broker or Channel.
type REST struct {
	// Kind is the kind of the parent resource, Parents its storage.
	Kind    eventing.Kind
	Parents rest.Getter
	Traces  *Late
	// Authorizer decides which objects of other namespaces the user may see. Nil hides all.
	Authorizer authorizer.Authorizer
}

var (
	_ rest.GetterWithOptions = &REST{}
	_ rest.TableConvertor    = &REST{}
)

// New returns an empty object.
func (*REST) New() runtime.Object { return &duckv1.EventTrace{} }

// Destroy does nothing: the parent resource owns the store.
func (*REST) Destroy() {}

// NewGetOptions returns empty options. The resource has no subpaths.
func (*REST) NewGetOptions() (runtime.Object, bool, string) {
	return &duckv1.EventTraceOptions{}, false, ""
}

// Get returns the trace that the options select.
func (r *REST) Get(ctx context.Context, name string, options runtime.Object) (runtime.Object, error) {
	asked, ok := options.(*duckv1.EventTraceOptions)
	if !ok {
		return nil, apierrors.NewInternalError(fmt.Errorf("options of the trace are a %T", options))
	}
	if asked.ID == "" && asked.TraceID == "" {
		return nil, apierrors.NewBadRequest("one of the parameters 'id' and 'traceid' must be set")
	}
	if _, err := r.Parents.Get(ctx, name, &metav1.GetOptions{}); err != nil {
		return nil, err
	}
	traces := r.Traces.Load()
	if traces == nil {
		return nil, apierrors.NewServiceUnavailable("this server has no traces: it runs no broker, or --trace-retention is 0")
	}
	stream := eventing.Key{Kind: r.Kind, Namespace: request.NamespaceValue(ctx), Name: name}
	// Each object is asked for once in a request.
	decided := map[eventing.Key]bool{}
	return (*traces).Trace(ctx, stream, asked, func(key eventing.Key) bool {
		allowed, known := decided[key]
		if !known {
			allowed = r.readable(ctx, key)
			decided[key] = allowed
		}
		return allowed
	})
}

// readable reports whether the user may get the traces of a Broker or Channel of another namespace, or get a Trigger or Subscription there.
func (r *REST) readable(ctx context.Context, key eventing.Key) bool {
	user, ok := request.UserFrom(ctx)
	if !ok || r.Authorizer == nil {
		return false
	}
	a := authorizer.AttributesRecord{User: user, Verb: "get", Namespace: key.Namespace, Name: key.Name, ResourceRequest: true}
	switch key.Kind {
	case eventing.Broker:
		a.APIGroup, a.APIVersion, a.Resource, a.Subresource = eventingv1.GroupName, "v1", "brokers", "trace"
	case eventing.Channel:
		a.APIGroup, a.APIVersion, a.Resource, a.Subresource = messagingv1.GroupName, "v1", "channels", "trace"
	case eventing.Trigger:
		a.APIGroup, a.APIVersion, a.Resource = eventingv1.GroupName, "v1", "triggers"
	case eventing.Subscription:
		a.APIGroup, a.APIVersion, a.Resource = messagingv1.GroupName, "v1", "subscriptions"
	default:
		return false
	}
	// Without a decision, the object is hidden.
	decision, _, _ := r.Authorizer.Authorize(ctx, a)
	return decision == authorizer.DecisionAllow
}

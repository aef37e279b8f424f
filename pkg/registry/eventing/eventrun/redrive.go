package eventrun

import (
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Targets are the Triggers or the Subscriptions.
type Targets struct {
	// Kind and Resource are their names.
	Kind     schema.GroupVersionKind
	Resource schema.GroupResource
	Objects  rest.Getter
}

// redriveREST is the subresource redrive.
type redriveREST struct {
	subresource
	targets Targets
}

var (
	_ rest.NamedCreater             = &redriveREST{}
	_ rest.GroupVersionKindProvider = &redriveREST{}
	_ rest.StorageMetadata          = &redriveREST{}
	_ rest.TableConvertor           = &redriveREST{}
)

// NewRedrive returns the subresource redrive of a kind.
func NewRedrive(targets Targets, runs *Runs) rest.Storage {
	return &redriveREST{subresource: newSubresource(runs), targets: targets}
}

// New returns an empty request.
func (*redriveREST) New() runtime.Object { return &eventingv1alpha1.Redrive{} }

// GroupVersionKind returns the kind of requests, which is of another version than the resource.
func (*redriveREST) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind {
	return eventingv1alpha1.SchemeGroupVersion.WithKind("Redrive")
}

// Create creates the EventRun that delivers the dead letters of a target again.
func (r *redriveREST) Create(ctx context.Context, name string, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error) {
	asked, err := registry.BodyAs[*eventingv1alpha1.Redrive](obj, r.targets.Kind.Kind, name)
	if err != nil {
		return nil, err
	}
	target, err := registry.GetAs[registry.Object](ctx, r.targets.Objects, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	asked.Destination.SetDefaults(target.GetNamespace())
	if errs := eventingv1alpha1.ValidateRedrive(asked); len(errs) > 0 {
		return nil, apierrors.NewInvalid(eventingv1alpha1.SchemeGroupVersion.WithKind("Redrive").GroupKind(), name, errs)
	}
	if validate != nil {
		if err := validate(ctx, obj); err != nil {
			return nil, err
		}
	}
	if target.GetDeletionTimestamp() != nil {
		return nil, apierrors.NewConflict(r.targets.Resource, name, errors.New("the object is being deleted, with its dead letters"))
	}
	run := newRun(r.targets.Kind, target)
	run.Spec.Redrive = &eventingv1alpha1.EventRunRedrive{Selector: asked.Selector, Rate: asked.Rate, Destination: asked.Destination}
	return r.runs.create(ctx, run, r.targets.Resource, options)
}

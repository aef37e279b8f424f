// Package deadletter implements the API resource deadletters.eventing.knative.dev: a read-only view of the dead letter store. Nothing of
// it is in etcd.
//
// Dead letters cannot be watched: the store has no changes to follow, only an end, and the garbage collectors and quotas of Kubernetes would
// hold all of them in memory.
package deadletter

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

// Selection selects dead letters.
type Selection struct {
	// Namespace is empty for all namespaces.
	Namespace string
	Labels    labels.Selector
	Fields    fields.Selector
}

// Matches reports whether a dead letter is selected.
func (s *Selection) Matches(d *eventingv1alpha1.DeadLetter) bool {
	return s.Labels.Matches(labels.Set(d.Labels)) && s.Fields.Matches(d.Fields())
}

// DeadLetters are the dead letters of the store. Errors are errors of the API.
type DeadLetters interface {
	Get(ctx context.Context, namespace, name string) (*eventingv1alpha1.DeadLetter, error)
	// List returns at most limit dead letters from a position, which is empty at first. The list has less if they are large or few are
	// selected among many: the others follow from the position in its continue.
	List(ctx context.Context, selection *Selection, limit int64, position string) (*eventingv1alpha1.DeadLetterList, error)
	Delete(ctx context.Context, namespace, name string) error
	// DeleteAll deletes the dead letters that are selected, of one namespace. After an error, some are deleted.
	DeleteAll(ctx context.Context, selection *Selection) error
}

// Late has DeadLetters that are set after the API is served. The zero value has none.
type Late = registry.Late[DeadLetters]

// REST serves dead letters.
type REST struct {
	rest.TableConvertor
	dead *Late
}

var (
	_ rest.Scoper               = &REST{}
	_ rest.Getter               = &REST{}
	_ rest.Lister               = &REST{}
	_ rest.GracefulDeleter      = &REST{}
	_ rest.CollectionDeleter    = &REST{}
	_ rest.SingularNameProvider = &REST{}
)

// NewREST returns the storage of dead letters. It answers 503 until they are set.
func NewREST(dead *Late) *REST {
	return &REST{TableConvertor: newTableConvertor(), dead: dead}
}

// New returns an empty object.
func (*REST) New() runtime.Object { return &eventingv1alpha1.DeadLetter{} }

// NewList returns an empty list.
func (*REST) NewList() runtime.Object { return &eventingv1alpha1.DeadLetterList{} }

// Destroy does nothing: the event log has the dead letters.
func (*REST) Destroy() {}

// NamespaceScoped returns true.
func (*REST) NamespaceScoped() bool { return true }

// GetSingularName returns the name of one object.
func (*REST) GetSingularName() string { return "deadletter" }

func (r *REST) load() (DeadLetters, error) {
	if dead := r.dead.Load(); dead != nil {
		return *dead, nil
	}
	return nil, apierrors.NewServiceUnavailable("the dead letter store is not open yet")
}

// Get returns a dead letter.
func (r *REST) Get(ctx context.Context, name string, _ *metav1.GetOptions) (runtime.Object, error) {
	dead, err := r.load()
	if err != nil {
		return nil, err
	}
	return dead.Get(ctx, request.NamespaceValue(ctx), name)
}

func selectionOf(ctx context.Context, options *metainternalversion.ListOptions) *Selection {
	s := &Selection{Namespace: request.NamespaceValue(ctx), Labels: labels.Everything(), Fields: fields.Everything()}
	if options != nil && options.LabelSelector != nil {
		s.Labels = options.LabelSelector
	}
	if options != nil && options.FieldSelector != nil {
		s.Fields = options.FieldSelector
	}
	return s
}

// List returns the dead letters that are selected. A list without a limit is paged too, because all dead letters may exceed the memory.
func (r *REST) List(ctx context.Context, options *metainternalversion.ListOptions) (runtime.Object, error) {
	dead, err := r.load()
	if err != nil {
		return nil, err
	}
	limit, position := int64(0), ""
	if options != nil {
		limit, position = options.Limit, options.Continue
	}
	return dead.List(ctx, selectionOf(ctx, options), limit, position)
}

// Delete deletes a dead letter at once.
func (r *REST) Delete(ctx context.Context, name string, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions) (runtime.Object, bool, error) {
	dead, err := r.load()
	if err != nil {
		return nil, false, err
	}
	found, err := dead.Get(ctx, request.NamespaceValue(ctx), name)
	if err != nil {
		return nil, false, err
	}
	if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != found.UID || p.ResourceVersion != nil && *p.ResourceVersion != found.ResourceVersion) {
		return nil, false, apierrors.NewConflict(eventingv1alpha1.Resource("deadletters"), name, errPrecondition)
	}
	if validate != nil {
		if err := validate(ctx, found.DeepCopyObject()); err != nil {
			return nil, false, err
		}
	}
	if len(options.DryRun) > 0 {
		return found, true, nil
	}
	return found, true, dead.Delete(ctx, request.NamespaceValue(ctx), name)
}

// DeleteCollection deletes the dead letters that are selected. It returns no list of them, because that may exceed the memory. Admission
// sees an object without content, as nothing else about the dead letters is known before.
func (r *REST) DeleteCollection(ctx context.Context, validate rest.ValidateObjectFunc, options *metav1.DeleteOptions, listOptions *metainternalversion.ListOptions) (runtime.Object, error) {
	dead, err := r.load()
	if err != nil {
		return nil, err
	}
	selection := selectionOf(ctx, listOptions)
	if validate != nil {
		if err := validate(ctx, &eventingv1alpha1.DeadLetter{ObjectMeta: metav1.ObjectMeta{Namespace: selection.Namespace}}); err != nil {
			return nil, err
		}
	}
	if options != nil && len(options.DryRun) > 0 {
		return &metav1.Status{Status: metav1.StatusSuccess}, nil
	}
	if err := dead.DeleteAll(ctx, selection); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

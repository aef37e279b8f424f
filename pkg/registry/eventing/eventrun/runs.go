package eventrun

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/utils/ptr"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry"
)

const (
	// MaxInProgress bounds the EventRuns of a namespace that are in progress. Replicas that create some at the same moment may exceed it.
	MaxInProgress = 10
	// retrySeconds is the value of Retry-After beyond MaxInProgress.
	retrySeconds = 10
)

// Store stores EventRuns.
type Store interface {
	rest.Getter
	rest.Lister
	rest.GracefulDeleter
	Create(ctx context.Context, obj runtime.Object, validate rest.ValidateObjectFunc, options *metav1.CreateOptions) (runtime.Object, error)
}

// Runs creates EventRuns: at most one for each target, and MaxInProgress in progress for each namespace.
type Runs struct {
	store Store
	// mu is held while an EventRun is created.
	mu sync.Mutex
}

// NewRuns returns the Runs that store EventRuns in a store.
func NewRuns(store Store) *Runs { return &Runs{store: store} }

// NameOf returns the name of the EventRun of a target: the name makes two at the same time impossible.
func NameOf(target eventingv1alpha1.EventRunTarget) string {
	name := strings.ToLower(target.Kind) + "-" + target.Name
	if len(name) <= validation.DNS1123SubdomainMaxLength {
		return name
	}
	const hashBytes = 8
	sum := sha256.Sum256([]byte(name))
	return strings.TrimRight(name[:validation.DNS1123SubdomainMaxLength-2*hashBytes-1], "-.") + "-" + hex.EncodeToString(sum[:hashBytes])
}

// inProgress returns the error of a request while another EventRun of the target is in progress.
func inProgress(run *eventingv1alpha1.EventRun, resource schema.GroupResource) error {
	return apierrors.NewConflict(resource, run.Spec.Target.Name,
		fmt.Errorf("EventRun '%s' of the %s is in progress; wait until it ends, or delete it to cancel it", run.Name, run.Spec.Target.Kind))
}

// create stores an EventRun, in place of one that has ended or belongs to an earlier target of the same name. resource names the kind of the target
// in errors.
func (r *Runs) create(ctx context.Context, run *eventingv1alpha1.EventRun, resource schema.GroupResource, options *metav1.CreateOptions) (runtime.Object, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	before, err := r.store.Get(ctx, run.Name, &metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		before = nil
	case err != nil:
		return nil, err
	default:
		before, ok := before.(*eventingv1alpha1.EventRun)
		if !ok || !before.Ended() && metav1.IsControlledBy(before, &metav1.ObjectMeta{UID: run.OwnerReferences[0].UID}) {
			return nil, inProgress(run, resource)
		}
	}
	if err := r.checkQuota(ctx, run); err != nil {
		return nil, err
	}
	if before != nil {
		if len(options.DryRun) > 0 {
			return run, nil
		}
		uid := before.(metav1.Object).GetUID()
		_, gone, err := r.store.Delete(ctx, run.Name, rest.ValidateAllObjectFunc, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
		if err != nil && !apierrors.IsNotFound(err) {
			return nil, err
		}
		if err == nil && !gone {
			return nil, apierrors.NewConflict(resource, run.Spec.Target.Name, fmt.Errorf("EventRun '%s' is being deleted, and waits for its finalizers", run.Name))
		}
	}
	created, err := r.store.Create(ctx, run, rest.ValidateAllObjectFunc, options)
	if apierrors.IsAlreadyExists(err) {
		return nil, inProgress(run, resource)
	}
	return created, err
}

// checkQuota returns an error if the namespace has too many EventRuns in progress.
func (r *Runs) checkQuota(ctx context.Context, run *eventingv1alpha1.EventRun) error {
	obj, err := r.store.List(ctx, nil)
	if err != nil {
		return err
	}
	list, ok := obj.(*eventingv1alpha1.EventRunList)
	if !ok {
		return apierrors.NewInternalError(fmt.Errorf("the list of EventRuns is a %T", obj))
	}
	n := 0
	for i := range list.Items {
		if other := &list.Items[i]; other.Name != run.Name && !other.Ended() {
			n++
		}
	}
	if n >= MaxInProgress {
		return apierrors.NewTooManyRequests(fmt.Sprintf(
			"namespace '%s' has %d EventRuns in progress, and may have at most %d; wait until one ends, or delete one to cancel it", run.Namespace, n, MaxInProgress), retrySeconds)
	}
	return nil
}

// newRun returns an EventRun of a target, which owns it, without redrive or replay.
func newRun(kind schema.GroupVersionKind, target metav1.Object) *eventingv1alpha1.EventRun {
	of := eventingv1alpha1.EventRunTarget{Kind: kind.Kind, Name: target.GetName()}
	return &eventingv1alpha1.EventRun{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: target.GetNamespace(), Name: NameOf(of),
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: kind.GroupVersion().String(), Kind: of.Kind, Name: of.Name, UID: target.GetUID(), Controller: ptr.To(true),
			}},
		},
		Spec: eventingv1alpha1.EventRunSpec{Target: of},
	}
}

// subresource is the common part of the subresources that create EventRuns.
type subresource struct {
	rest.TableConvertor
	runs *Runs
}

func newSubresource(runs *Runs) subresource {
	all := append([]registry.Column[*eventingv1alpha1.EventRun]{registry.NameColumn[*eventingv1alpha1.EventRun]()}, columns()...)
	return subresource{TableConvertor: registry.NewTableConvertor(all...), runs: runs}
}

// Destroy does nothing: the resources own the stores.
func (subresource) Destroy() {}

// ProducesMIMETypes returns no further media types.
func (subresource) ProducesMIMETypes(string) []string { return nil }

// ProducesObject returns the object of responses.
func (subresource) ProducesObject(string) any { return eventingv1alpha1.EventRun{} }

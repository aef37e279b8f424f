package service

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
)

// errNotOwned means that another object has the name of a child (serving 7.0.1-2).
var errNotOwned = errors.New("not controlled by the Service")

// client is the part of a kind's client that children need.
type client[O any] interface {
	Create(ctx context.Context, obj O, opts metav1.CreateOptions) (O, error)
	Update(ctx context.Context, obj O, opts metav1.UpdateOptions) (O, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (O, error)
}

// child reads, creates and updates a Service's child of one kind.
type child[O metav1.Object] struct {
	kind    string
	listed  reconciler.NamespaceLister[O]
	stored  client[O]
	desired func(*servingv1.Service) O
	update  func(O, *servingv1.Service) O
}

// ensure creates or updates the child and returns it as it is stored, or the zero value and an error: errNotOwned, or an error of the
// server. It records an Event about the creation.
func (c child[O]) ensure(ctx context.Context, service *servingv1.Service, recorder record.EventRecorder) (O, error) {
	var none O
	existing, err := c.listed.Get(service.Name)
	if apierrors.IsNotFound(err) {
		created, err := c.stored.Create(ctx, c.desired(service), metav1.CreateOptions{})
		if err == nil {
			recorder.Eventf(service, corev1.EventTypeNormal, reconciler.ReasonCreated, "Created %s %q", c.kind, service.Name)
			return created, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return none, err
		}
		// The informer lags behind.
		if existing, err = c.stored.Get(ctx, service.Name, metav1.GetOptions{}); err != nil {
			return none, err
		}
	} else if err != nil {
		return none, err
	}
	if !metav1.IsControlledBy(existing, service) {
		return none, errNotOwned
	}
	if existing.GetDeletionTimestamp() != nil {
		return existing, nil
	}
	updated := c.update(existing, service)
	if equality.Semantic.DeepEqual(existing, updated) {
		return existing, nil
	}
	updated, err = c.stored.Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return none, err
	}
	return updated, nil
}

// fault returns the condition of type t for the error of a child of some kind, or nil if the error is nil or a retry may resolve it.
func fault(t duckv1.ConditionType, kind, name string, err error) *duckv1.Condition {
	var condition duckv1.Condition
	switch {
	case errors.Is(err, errNotOwned):
		condition = reconciler.False(t, reconciler.ReasonNotOwned, fmt.Sprintf("There is an existing %s %q that we do not own.", kind, name))
	case reconciler.Refused(err):
		condition = reconciler.False(t, reasonRejected, fmt.Sprintf("The %s %q was rejected: %v", kind, name, err))
	default:
		return nil
	}
	return &condition
}

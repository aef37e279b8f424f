package channel

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// ChannelLabelKey on the core Service of a Channel holds its name.
const ChannelLabelKey = messagingv1.GroupName + "/channel"

// ReasonServiceFailed means that the core Service of the Channel cannot be written, so that its address does not
// resolve.
const ReasonServiceFailed = "ServiceFailed"

// Services are core Services by which the addresses of Channels resolve in the host cluster.
type Services interface {
	// Apply creates and updates the Services of a Channel with the given names, and deletes its others. It returns
	// *hostservice.NotOwned if another object has a name.
	Apply(ctx context.Context, channel metav1.Object, names []string) error
	// Forget stops waiting for the names that a deleted object could not get.
	Forget(key types.NamespacedName)
	// Track enqueues the Channels whose Services change.
	Track(controller *reconciler.Controller) error
}

// place creates the core Service of a Channel. It returns the condition Addressable, and an error to retry.
func (r *Reconciler) place(ctx context.Context, channel *messagingv1.Channel) (duckv1.Condition, error) {
	const t = messagingv1.ChannelConditionAddressable
	if r.Services == nil {
		return reconciler.True(t), nil
	}
	err := r.Services.Apply(ctx, channel, []string{eventing.ChannelHost(channel.Name)})
	notOwned, conflict := errors.AsType[*hostservice.NotOwned](err)
	switch {
	case err == nil:
		return reconciler.True(t), nil
	case conflict:
		// A change of the conflicting Service enqueues the Channel.
		return reconciler.False(t, reconciler.ReasonNotOwned, notOwned.Error()), nil
	case reconciler.Refused(err):
		return reconciler.False(t, ReasonServiceFailed, fmt.Sprintf("The Channel's address does not resolve: %v", err)), err
	case apierrors.IsConflict(err):
		// The next attempt decides.
		return duckv1.Condition{}, err
	}
	return reconciler.Unknown(t, ReasonServiceFailed, fmt.Sprintf("The Channel's address does not resolve yet: %v", err)), err
}

package channel

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/channelable"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
)

// Reasons of BackingChannelReady and Addressable of a Channel whose template names a kind that another controller serves.
const (
	// ReasonKindNotFound means that the cluster does not serve the kind, or that there is no cluster.
	ReasonKindNotFound = "ChannelTemplateKindNotFound"
	// ReasonNotChannelable means that the kind does not have the fields of a channel.
	ReasonNotChannelable = "ChannelTemplateKindNotChannelable"
	// ReasonBackingChannelFailed means that the backing channel cannot be written.
	ReasonBackingChannelFailed = "BackingChannelFailed"
	// ReasonBackingChannelNotReady means that the backing channel does not report that it is ready, or its address.
	ReasonBackingChannelNotReady = "BackingChannelNotReady"
)

// backingChannel has the fields that channels of all kinds share.
type backingChannel struct {
	Spec struct {
		Delivery *duckv1.DeliverySpec `json:"delivery"`
	} `json:"spec"`
	Status struct {
		duckv1.Status         `json:",inline"`
		duckv1.AddressStatus  `json:",inline"`
		duckv1.DeliveryStatus `json:",inline"`
		Subscribers           []duckv1.SubscriberStatus `json:"subscribers"`
	} `json:"status"`
}

// reconcileForeign creates the object that implements a Channel, and mirrors its status (eventing Channel Lifecycle).
func (r *Reconciler) reconcileForeign(ctx context.Context, request reconciler.Request, channel *messagingv1.Channel) error {
	key := request.Key
	refs := r.Tracker.Begin(key)
	deadLetter, resolved, err := refs.DeadLetterSink(ctx, channel.Spec.Delivery)
	if err != nil {
		return fmt.Errorf("resolve dead letter sink of %s: %w", streams.ChannelKey(key), err)
	}
	backing, fault, failed := r.backing(ctx, refs, channel, request.Writes)
	if failed != nil && fault == nil {
		return failed
	}
	refs.End()
	if !request.Writes {
		return failed
	}
	updated := *channel
	updated.Status = *channel.Status.DeepCopy()
	updated.Status.DeliveryStatus, updated.Status.Subscribers = deadLetter, nil
	found := []duckv1.Condition{resolved}
	if fault != nil {
		// A published address stays.
		addressable := *fault
		addressable.Type = messagingv1.ChannelConditionAddressable
		found = append(found, *fault, addressable)
	} else {
		reference := channelable.BackingReference(channel)
		updated.Status.Channel, updated.Status.AddressStatus, updated.Status.Subscribers = &reference, backing.Status.AddressStatus, backing.Status.Subscribers
		if backing.Status.DeliveryStatus.DeadLetterSinkURI != "" {
			updated.Status.DeliveryStatus = backing.Status.DeliveryStatus
		}
		found = append(found, backing.ready(), backing.addressable())
	}
	reconciler.Observe(&updated.Status.Status, channel.Generation, metav1.NewTime(r.Clock.Now()), foreignDependents, found...)
	written, err := request.Status.Write(ctx, reconciler.UpdateOf(r.Client.Channels(key.Namespace), channel, &updated))
	if written {
		reconciler.RecordReady(r.Recorder, &updated, channel.Status.Conditions, updated.Status.Conditions)
	}
	return errors.Join(failed, err)
}

// backing returns the object that implements a Channel, or the condition BackingChannelReady with the reason why it does not exist.
// The caller retries after an error; an error without a fault means that the state of the object is unknown. Unless writes is true,
// backing only follows the object, and returns nil if it would have to be created.
func (r *Reconciler) backing(ctx context.Context, refs *destination.References, channel *messagingv1.Channel, writes bool,
) (found *backingChannel, fault *duckv1.Condition, err error) {
	const t = messagingv1.ChannelConditionBackingChannelReady
	not := func(condition duckv1.Condition, err error) (*backingChannel, *duckv1.Condition, error) {
		return nil, &condition, err
	}
	reference := channelable.BackingReference(channel)
	kind := schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind)
	switch {
	case r.Host == nil:
		return not(reconciler.False(t, ReasonKindNotFound, fmt.Sprintf("%s cannot implement the Channel: this server runs without a cluster.", kind)), nil)
	case kind.GroupKind() == channelable.Kind:
		return not(reconciler.False(t, ReasonNotChannelable, fmt.Sprintf("%s cannot implement the Channel.", kind)), nil)
	}
	obj, err := refs.HostObject(ctx, &reference)
	unresolved, isUnresolved := destination.AsUnresolved(err)
	switch {
	case isUnresolved && unresolved.Reason == destination.ReasonNotFound:
		mapping, err := r.Host.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if meta.IsNoMatchError(err) {
			return not(reconciler.False(t, ReasonKindNotFound, fmt.Sprintf("The cluster serves no %s. Install the controller of this kind, or create the Channel "+
				"with another spec.channelTemplate.", kind)), nil)
		}
		if err != nil || channel.DeletionTimestamp != nil {
			return not(reconciler.Unknown(t, ReasonBackingChannelNotReady, unresolved.Message), err)
		}
		if !writes {
			return nil, nil, nil
		}
		if obj, err = r.create(ctx, channel, mapping); err != nil {
			return notWritten(err)
		}
	case isUnresolved:
		return not(reconciler.Unknown(t, "BackingChannel"+unresolved.Reason, unresolved.Message), nil)
	case err != nil:
		return nil, nil, fmt.Errorf("read %s of %s: %w", kind, streams.ChannelKey(types.NamespacedName{Namespace: channel.Namespace, Name: channel.Name}), err)
	case !metav1.IsControlledBy(obj, channel):
		return not(reconciler.False(t, reconciler.ReasonNotOwned, fmt.Sprintf("%s %q exists and does not belong to the Channel. Delete it, or give the "+
			"Channel another name.", kind, channel.Name)), nil)
	}
	if found, err = parse(obj); err != nil {
		return not(reconciler.False(t, ReasonNotChannelable, fmt.Sprintf("%s does not have the fields of a channel: %v", kind, err)), nil)
	}
	if !writes {
		return found, nil, nil
	}
	if err := r.updateDelivery(ctx, channel, kind, found); err != nil {
		return notWritten(err)
	}
	return found, nil, nil
}

func parse(obj *unstructured.Unstructured) (*backingChannel, error) {
	var c backingChannel
	return &c, runtime.DefaultUnstructuredConverter.FromUnstructured(obj.Object, &c)
}

// notWritten returns the condition for a backing channel that could not be written.
func notWritten(err error) (*backingChannel, *duckv1.Condition, error) {
	const t = messagingv1.ChannelConditionBackingChannelReady
	message := fmt.Sprintf("The backing channel cannot be written: %v", err)
	condition := reconciler.Unknown(t, ReasonBackingChannelFailed, message)
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return nil, nil, err
	case reconciler.Refused(err):
		condition = reconciler.False(t, ReasonBackingChannelFailed, message)
	}
	return nil, &condition, err
}

// create creates the object that implements a Channel: with the parameters of the template, and the delivery options of the
// Channel.
func (r *Reconciler) create(ctx context.Context, channel *messagingv1.Channel, mapping *meta.RESTMapping) (*unstructured.Unstructured, error) {
	spec := map[string]any{}
	if parameters := channel.Spec.ChannelTemplate.Spec; parameters != nil && len(parameters.Raw) > 0 {
		if err := utiljson.Unmarshal(parameters.Raw, &spec); err != nil {
			return nil, fmt.Errorf("decode spec.channelTemplate.spec: %w", err)
		}
	}
	if !channel.Spec.Delivery.IsEmpty() {
		delivery, err := runtime.DefaultUnstructuredConverter.ToUnstructured(channel.Spec.Delivery)
		if err != nil {
			return nil, fmt.Errorf("encode spec.delivery: %w", err)
		}
		spec["delivery"] = delivery
	}
	obj := &unstructured.Unstructured{Object: map[string]any{"spec": spec}}
	obj.SetGroupVersionKind(mapping.GroupVersionKind)
	obj.SetNamespace(channel.Namespace)
	obj.SetName(channel.Name)
	obj.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(channel, messagingv1.SchemeGroupVersion.WithKind(channelable.Kind.Kind))})
	return r.Host.Client.Resource(mapping.Resource).Namespace(channel.Namespace).Create(ctx, obj, metav1.CreateOptions{})
}

// updateDelivery writes the delivery options of a Channel to the object that implements it. Without any, the
// options of the template apply.
func (r *Reconciler) updateDelivery(ctx context.Context, channel *messagingv1.Channel, kind schema.GroupVersionKind, backing *backingChannel) error {
	if channel.Spec.Delivery.IsEmpty() || equality.Semantic.DeepEqual(channel.Spec.Delivery, backing.Spec.Delivery) {
		return nil
	}
	mapping, err := r.Host.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return fmt.Errorf("find the resource of %s: %w", kind, err)
	}
	patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/spec/delivery", "value": channel.Spec.Delivery}})
	if err != nil {
		return fmt.Errorf("encode spec.delivery: %w", err)
	}
	_, err = r.Host.Client.Resource(mapping.Resource).Namespace(channel.Namespace).Patch(ctx, channel.Name, types.JSONPatchType, patch, metav1.PatchOptions{})
	return err
}

// ready returns the condition BackingChannelReady.
func (c *backingChannel) ready() duckv1.Condition {
	const t = messagingv1.ChannelConditionBackingChannelReady
	ready := c.Status.Conditions.Get(duckv1.ConditionReady)
	if ready == nil {
		return reconciler.Unknown(t, ReasonBackingChannelNotReady, "The backing channel does not report whether it is ready.")
	}
	return reconciler.Repeat(t, ready)
}

// addressable returns the condition Addressable.
func (c *backingChannel) addressable() duckv1.Condition {
	const t = messagingv1.ChannelConditionAddressable
	if c.Status.Address.GetURL() != "" {
		return reconciler.True(t)
	}
	if ready := c.Status.Conditions.Get(duckv1.ConditionReady); ready != nil && ready.Status == corev1.ConditionFalse {
		return reconciler.False(t, ReasonBackingChannelNotReady, "The backing channel has no address.")
	}
	return reconciler.Unknown(t, ReasonBackingChannelNotReady, "The backing channel has no address yet.")
}

package subscription

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/util/retry"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

// Finalizer keeps a Subscription until its channel no longer lists it, if that is a channel of the host cluster.
const Finalizer = "subscriptions.messaging.knative.dev"

// patience is the time that a Subscription waits for its removal from its channel in the host cluster. It must not block the deletion
// of its namespace.
const patience = 2 * time.Minute

// channels returns the channels of a kind of the host cluster in a namespace.
func (r *Reconciler) channels(kind schema.GroupVersionKind, namespace string) (dynamic.ResourceInterface, error) {
	mapping, err := r.Host.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if err != nil {
		return nil, fmt.Errorf("find the resource of %s: %w", kind, err)
	}
	return r.Host.Client.Resource(mapping.Resource).Namespace(namespace), nil
}

// replaceEntry replaces the entries of a Subscription in spec.subscribers of an object; nil removes them. Other entries are unchanged.
// It returns whether that changed the object. obj may be outdated.
func replaceEntry(ctx context.Context, resource dynamic.ResourceInterface, obj *unstructured.Unstructured, uid types.UID, entry map[string]any) (changed bool, err error) {
	current := obj
	err = retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if current == nil {
			latest, err := resource.Get(ctx, obj.GetName(), metav1.GetOptions{})
			if err != nil {
				return err
			}
			current = latest
		}
		listed, _, err := unstructured.NestedSlice(current.Object, "spec", "subscribers")
		if err != nil {
			return err
		}
		subscribers := slices.DeleteFunc(slices.Clone(listed), func(listed any) bool {
			other, ok := listed.(map[string]any)
			return ok && other["uid"] == string(uid)
		})
		if entry != nil {
			subscribers = append(subscribers, entry)
		} else if len(subscribers) == len(listed) {
			return nil
		}
		patch, err := json.Marshal(map[string]any{
			"metadata": map[string]any{"resourceVersion": current.GetResourceVersion()},
			"spec":     map[string]any{"subscribers": subscribers},
		})
		if err != nil {
			return err
		}
		stored, err := resource.Patch(ctx, obj.GetName(), types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			current = nil
			return err
		}
		changed = stored.GetResourceVersion() != current.GetResourceVersion()
		return nil
	})
	if err != nil {
		return false, fmt.Errorf("write spec.subscribers of %s \"%s/%s\": %w", obj.GetKind(), obj.GetNamespace(), obj.GetName(), err)
	}
	return changed, nil
}

// hold adds the finalizer to a Subscription, and returns the stored object.
func (r *Reconciler) hold(ctx context.Context, subscription *messagingv1.Subscription) (*messagingv1.Subscription, error) {
	if slices.Contains(subscription.Finalizers, Finalizer) {
		return subscription, nil
	}
	return r.setFinalizers(ctx, subscription, append(slices.Clone(subscription.Finalizers), Finalizer))
}

// release removes the finalizer from a Subscription that is being deleted, once its channel does not list it or does not exist.
func (r *Reconciler) release(ctx context.Context, subscription *messagingv1.Subscription) error {
	if !slices.Contains(subscription.Finalizers, Finalizer) {
		return nil
	}
	if err := r.unlist(ctx, subscription); err != nil {
		if r.Clock.Since(subscription.DeletionTimestamp.Time) < patience {
			return err
		}
		r.Recorder.Eventf(subscription, corev1.EventTypeWarning, ReasonSubscriberLeft,
			"The channel may go on sending events to the Subscription: %v", err)
	}
	_, err := r.setFinalizers(ctx, subscription, slices.DeleteFunc(slices.Clone(subscription.Finalizers), func(f string) bool { return f == Finalizer }))
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// unlist removes a Subscription from its channel of the host cluster. It succeeds if the channel does not exist.
func (r *Reconciler) unlist(ctx context.Context, subscription *messagingv1.Subscription) error {
	if r.Host == nil {
		return nil
	}
	reference, foreign, err := r.foreignChannel(subscription)
	if err != nil || !foreign {
		return err
	}
	kind := schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind)
	channels, err := r.channels(kind, subscription.Namespace)
	if err == nil {
		err = removeEntry(ctx, channels, reference.Name, origin.UID(subscription.UID))
	}
	// Neither error implies that the channel does not exist: the kind may be unavailable, or served in another version.
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		var resource schema.GroupVersionResource
		var found bool
		if resource, found, err = r.Host.Lookup(ctx, kind); err != nil || !found {
			return err
		}
		err = removeEntry(ctx, r.Host.Client.Resource(resource).Namespace(subscription.Namespace), reference.Name, origin.UID(subscription.UID))
	}
	if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		return nil
	}
	return err
}

// removeEntry removes the entry of a Subscription from spec.subscribers of a channel.
func removeEntry(ctx context.Context, channels dynamic.ResourceInterface, name string, uid types.UID) error {
	// An informer may not have the entry yet.
	obj, err := channels.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	_, err = replaceEntry(ctx, channels, obj, uid, nil)
	return err
}

// setFinalizers replaces the finalizers of a Subscription, if it has not changed since it was read.
func (r *Reconciler) setFinalizers(ctx context.Context, subscription *messagingv1.Subscription, finalizers []string) (*messagingv1.Subscription, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": subscription.UID, "resourceVersion": subscription.ResourceVersion, "finalizers": finalizers,
	}})
	if err != nil {
		return nil, err
	}
	stored, err := r.Client.Subscriptions(subscription.Namespace).Patch(ctx, subscription.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		return nil, fmt.Errorf("change the finalizers of Subscription \"%s/%s\": %w", subscription.Namespace, subscription.Name, err)
	}
	return stored, nil
}

// Package senderaccount gives Triggers and Subscriptions ServiceAccounts, whose tokens authenticate deliveries.
package senderaccount

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// LabelKey is the label of the ServiceAccounts, with the value LabelValue.
const (
	LabelKey   = "eventing.knative.dev/oidc"
	LabelValue = "enabled"
)

// The reasons of the condition OIDCIdentityCreated, as in Knative's releases.
const (
	ReasonDisabled = "authentication-oidc feature disabled"
	ReasonFailed   = "Unable to resolve service account for OIDC authentication"
)

// fieldManager is the field manager of the ServiceAccounts.
const fieldManager = "knative-apiserver"

// NewInformer returns an informer of the metadata of the ServiceAccounts. The caller runs it.
func NewInformer(client metadata.Interface) cache.SharedIndexInformer {
	return metadatainformer.NewFilteredMetadataInformer(client, corev1.SchemeGroupVersion.WithResource("serviceaccounts"), metav1.NamespaceAll, 0, cache.Indexers{},
		func(o *metav1.ListOptions) { o.LabelSelector = LabelKey + "=" + LabelValue }).Informer()
}

// Source creates ServiceAccounts in the host cluster.
type Source struct {
	Client typedcorev1.ServiceAccountsGetter
	// Informer was returned by NewInformer.
	Informer cache.SharedIndexInformer
	// Enabled reports whether senders are authenticated.
	Enabled func() bool
}

// Controller is the part of a reconciler.Controller that a Source needs.
type Controller interface {
	Watch(informer cache.SharedIndexInformer, keys func(obj metav1.Object) []types.NamespacedName) error
}

// Of returns the Accounts of the objects of a kind, and makes its controller reconcile an object when its ServiceAccount changes.
func (s Source) Of(kind schema.GroupVersionKind, controller Controller) (*Accounts, error) {
	err := controller.Watch(s.Informer, func(obj metav1.Object) []types.NamespacedName {
		// A ServiceAccount with an owner of another kind does not identify the object that waits for its name.
		if owner := metav1.GetControllerOfNoCopy(obj); owner != nil && isKind(owner, kind) {
			return []types.NamespacedName{{Namespace: obj.GetNamespace(), Name: owner.Name}}
		}
		return nil
	})
	return &Accounts{Source: s, kind: kind}, err
}

// Accounts are the ServiceAccounts of the objects of one kind. Its methods may be called concurrently.
type Accounts struct {
	Source
	kind schema.GroupVersionKind
}

// Found is the result of Apply, for the status of an object and the data plane.
type Found struct {
	// Account is for the data plane. It has no name without a ServiceAccount.
	Account eventing.Account
	// Enabled is true if deliveries are authenticated.
	Enabled bool
	// Auth is the part of the status, nil without a ServiceAccount.
	Auth *duckv1.Auth
	// Condition is OIDCIdentityCreated.
	Condition duckv1.Condition
}

// Audience returns an audience of the status for the data plane: empty if deliveries are not authenticated.
func (f *Found) Audience(audience *string) string {
	if !f.Enabled {
		return ""
	}
	return ptr.Deref(audience, "")
}

// Apply creates the ServiceAccount of an object, or deletes it if senders are not authenticated. Without writes it only reports what exists. After an
// error Found has no ServiceAccount; the caller should write that before it retries.
func (a *Accounts) Apply(ctx context.Context, owner metav1.Object, writes bool) (Found, error) {
	name := eventing.AccountName(a.kind.Group, a.kind.Kind, owner.GetName())
	if !a.Enabled() {
		condition := reconciler.True(duckv1.ConditionOIDCIdentityCreated)
		condition.Reason = ReasonDisabled
		return Found{Condition: condition}, a.delete(ctx, owner, name, writes)
	}
	account, err := a.apply(ctx, owner, name, writes)
	switch {
	case err != nil:
		return Found{Enabled: true, Condition: reconciler.False(duckv1.ConditionOIDCIdentityCreated, ReasonFailed, err.Error())}, err
	case account == nil:
		return Found{Enabled: true, Condition: reconciler.Unknown(duckv1.ConditionOIDCIdentityCreated, "", "The ServiceAccount does not exist yet.")}, nil
	}
	return Found{
		Enabled: true, Account: eventing.Account{Name: name, UID: account.GetUID()},
		Auth: &duckv1.Auth{ServiceAccountName: &name}, Condition: reconciler.True(duckv1.ConditionOIDCIdentityCreated),
	}, nil
}

// apply returns the ServiceAccount of an object, nil if it is missing and writes is false.
func (a *Accounts) apply(ctx context.Context, owner metav1.Object, name string, writes bool) (metav1.Object, error) {
	namespace := owner.GetNamespace()
	known, err := a.known(namespace, name)
	if err != nil || known != nil && metav1.IsControlledBy(known, owner) {
		return known, err
	}
	if !writes {
		return nil, nil
	}
	if known != nil && a.former(known, owner) {
		// The garbage collector would delete it too, but later. Its tokens must not authenticate this object.
		if err := a.remove(ctx, known); err != nil {
			return nil, err
		}
	}
	created, err := a.Client.ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{LabelKey: LabelValue},
			Annotations:     map[string]string{"description": fmt.Sprintf("Service account for OIDC authentication of %s %q", a.kind.Kind, owner.GetName())},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, a.kind)},
		},
		AutomountServiceAccountToken: ptr.To(false),
	}, metav1.CreateOptions{FieldManager: fieldManager})
	switch {
	case err == nil:
		return created, nil
	case !apierrors.IsAlreadyExists(err):
		return nil, fmt.Errorf("create ServiceAccount \"%s/%s\": %w", namespace, name, err)
	}
	// The informer lags behind, or excludes it because the label is missing.
	existing, err := a.Client.ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read ServiceAccount \"%s/%s\": %w", namespace, name, err)
	case existing.Labels[LabelKey] != LabelValue || !metav1.IsControlledBy(existing, owner):
		return nil, fmt.Errorf("ServiceAccount \"%s/%s\" exists and does not belong to the %s; delete it, or give the %s another name", namespace, name, a.kind.Kind, a.kind.Kind)
	}
	return existing, nil
}

// delete deletes the ServiceAccount of an object, if it exists.
func (a *Accounts) delete(ctx context.Context, owner metav1.Object, name string, writes bool) error {
	known, err := a.known(owner.GetNamespace(), name)
	if err != nil || known == nil || !writes || !metav1.IsControlledBy(known, owner) && !a.former(known, owner) {
		return err
	}
	return a.remove(ctx, known)
}

// remove deletes a ServiceAccount unless another one has its name by now.
func (a *Accounts) remove(ctx context.Context, account metav1.Object) error {
	uid := account.GetUID()
	err := a.Client.ServiceAccounts(account.GetNamespace()).Delete(ctx, account.GetName(), metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete ServiceAccount \"%s/%s\": %w", account.GetNamespace(), account.GetName(), err)
	}
	return nil
}

// known returns the ServiceAccount of a name with the label, nil if the informer has none.
func (a *Accounts) known(namespace, name string) (metav1.Object, error) {
	obj, found, err := a.Informer.GetIndexer().GetByKey(namespace + "/" + name)
	if err != nil || !found {
		return nil, err
	}
	account, ok := obj.(metav1.Object)
	if !ok {
		return nil, fmt.Errorf("read ServiceAccount \"%s/%s\": the informer has a %T", namespace, name, obj)
	}
	return account, nil
}

// former reports whether a ServiceAccount belongs to an earlier object of the same name: one that was deleted, or restored with another UID.
func (a *Accounts) former(account, owner metav1.Object) bool {
	controller := metav1.GetControllerOfNoCopy(account)
	return controller != nil && isKind(controller, a.kind) && controller.Name == owner.GetName() && controller.UID != owner.GetUID()
}

func isKind(owner *metav1.OwnerReference, kind schema.GroupVersionKind) bool {
	gv, err := schema.ParseGroupVersion(owner.APIVersion)
	return err == nil && gv.Group == kind.Group && owner.Kind == kind.Kind
}

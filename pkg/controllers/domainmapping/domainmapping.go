// Package domainmapping reconciles DomainMappings: it claims their host names, resolves their references to Routes, passes the host
// names to the gateway, and reports both in the status.
package domainmapping

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/certmanager"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostnames"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hosttls"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	networkingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/networking/v1alpha1"
	servingclient "github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/typed/serving/v1beta1"
	networkinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/networking/v1alpha1"
	servingv1listers "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1"
	servinglisters "github.com/knative-apiserver/knative-apiserver/pkg/generated/listers/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Gateway serves the host names of DomainMappings. A change is effective when the call returns.
type Gateway interface {
	SetRoute(route *routing.Route)
	DeleteRoute(key routing.Key)
	// ServedByAll reports whether the gateways of all replicas serve the same route as this one. If not, it calls then once that may have changed.
	ServedByAll(key routing.Key, then func()) bool
}

// Queue accepts keys of DomainMappings to reconcile.
type Queue interface {
	Enqueue(key types.NamespacedName)
}

// Reconciler applies DomainMappings to the gateway, creates and deletes their claims, and writes their status.
//
// The routes of DomainMappings have the DomainMappings' keys. Routes of serving.knative.dev have other keys: their names are single
// DNS labels, the names of DomainMappings have several labels.
type Reconciler struct {
	Client       servingclient.ServingV1beta1Interface
	ClaimsClient networkingclient.NetworkingV1alpha1Interface
	Mappings     servinglisters.DomainMappingLister
	DomainClaims networkinglisters.ClusterDomainClaimLister
	Services     servingv1listers.ServiceLister
	Routes       servingv1listers.RouteLister
	Gateway      Gateway
	// Claims decide which host names the DomainMappings get.
	Claims *hostnames.Claims
	// Certificates are nil if the gateway does not serve HTTPS.
	Certificates hosttls.Certificates
	// CertManager is nil if the replica neither reads nor writes Certificates of cert-manager.
	CertManager hosttls.Manager
	URLs        URLs
	Recorder    record.EventRecorder
	Clock       clock.PassiveClock
	// Settings returns the same pointer until the settings change.
	Settings func() *settings.Settings
	Queue    Queue

	// mu guards published: the routes that the gateway has.
	mu        sync.Mutex
	published map[routing.Key]*routing.Route
}

// URLs configures the URLs of DomainMappings.
type URLs struct {
	// ClusterDomain is the DNS domain of the cluster, such as cluster.local.
	ClusterDomain string
	// Of returns the URL of a host name with a scheme.
	Of func(scheme, name string) string
}

// Reconcile applies a DomainMapping to the gateway and its status, in this order. The gateways of all replicas get the same
// routes. Replicas that do not write stop after the gateway.
func (r *Reconciler) Reconcile(ctx context.Context, request reconciler.Request) (reconciler.Result, error) {
	key := request.Key
	mapping, ok, err := reconciler.Listed(r.Mappings.DomainMappings(key.Namespace), key.Name)
	if err != nil {
		return reconciler.Result{}, err
	}
	if !ok || mapping.DeletionTimestamp != nil {
		r.publish(key, nil)
		r.Claims.Drop(ownerOf(key))
		hosttls.Withdraw(ctx, r.Certificates, r.CertManager, hosttls.Object{Owner: certificatesOwner(key)})
		if !ok || !request.Writes {
			return reconciler.Result{}, nil
		}
		return reconciler.Result{}, r.release(ctx, mapping)
	}
	if request.Writes && !slices.Contains(mapping.Finalizers, servingv1beta1.DomainMappingFinalizer) {
		mapping, err = r.setFinalizers(ctx, mapping, append(slices.Clone(mapping.Finalizers), servingv1beta1.DomainMappingFinalizer))
		if err != nil {
			return reconciler.Result{}, fmt.Errorf("add finalizer: %w", err)
		}
	}
	found, err := r.find(ctx, mapping, request.Writes)
	if err != nil {
		return reconciler.Result{}, err
	}
	r.publish(key, found.route(mapping))
	var result reconciler.Result
	if found.retry {
		result.RequeueAfter = retryPeriod
	}
	if !request.Writes {
		return result, nil
	}
	uncertified := found.tls.Apply(ctx)
	return result, errors.Join(uncertified, r.write(ctx, request.Status, mapping, found))
}

// find determines the state of a DomainMapping. A failure of one step stops the steps after it.
func (r *Reconciler) find(ctx context.Context, mapping *servingv1beta1.DomainMapping, writes bool) (*findings, error) {
	found := &findings{}
	var err error
	if found.claimed, err = r.claim(ctx, mapping, writes); err != nil {
		return found, err
	}
	if found.claimed.Status == corev1.ConditionTrue {
		found.tls = r.secure(ctx, mapping)
		err = r.resolve(mapping, found)
	} else {
		found.tls = hosttls.Withdraw(ctx, r.Certificates, r.CertManager, certified(mapping))
	}
	found.url = r.url(mapping, found)
	return found, err
}

// url returns the URL of a DomainMapping.
func (r *Reconciler) url(mapping *servingv1beta1.DomainMapping, found *findings) string {
	scheme := "http"
	if mapping.Spec.TLS != nil || found.tls.HTTPS(mapping.Name) {
		scheme = "https"
	}
	return r.URLs.Of(scheme, mapping.Name)
}

// certificatesKind is the kind of the owners of requests for certificates.
const certificatesKind = "DomainMapping"

// secure requests the certificates of a DomainMapping's hosts, from its Secret if it names one.
func (r *Reconciler) secure(ctx context.Context, mapping *servingv1beta1.DomainMapping) hosttls.Findings {
	object := certified(mapping)
	if mapping.Spec.TLS != nil {
		object.Secret = &mapping.Spec.TLS.SecretName
	}
	return hosttls.Secure(ctx, r.Certificates, r.CertManager, object, &r.Settings().Network)
}

func certificatesOwner(key routing.Key) hostcerts.Owner {
	return hostcerts.Owner{Kind: certificatesKind, Key: key}
}

// certified returns a DomainMapping as an object with certificates.
func certified(mapping *servingv1beta1.DomainMapping) hosttls.Object {
	return hosttls.Object{
		Owner: certificatesOwner(keyOf(mapping)), Annotations: mapping.Annotations, Public: hosts(mapping),
		Managed:     certmanager.Object{Meta: mapping, Kind: servingv1beta1.SchemeGroupVersion.WithKind(certificatesKind)},
		ManagedName: func(host string) string { return certificateName(mapping, host) },
	}
}

// certificateName returns the name of the Certificate of cert-manager for a host name of a DomainMapping: the DomainMapping's, as in
// Knative's releases, or one without a dot, which no DomainMapping has, for all names below it.
func certificateName(mapping *servingv1beta1.DomainMapping, host string) string {
	switch {
	case host != mapping.Name:
		return "wildcard-" + string(mapping.UID)
	case len(host) <= validation.DNS1123LabelMaxLength:
		return host
	}
	digest := sha256.Sum256([]byte(host))
	return fmt.Sprintf("%s%x", host[:validation.DNS1123LabelMaxLength-32], digest[:16])
}

// publish passes a route to the gateway, unless the gateway has an equal one; nil removes the route.
func (r *Reconciler) publish(key routing.Key, route *routing.Route) {
	r.mu.Lock()
	had, known := r.published[key]
	same := reflect.DeepEqual(had, route)
	if r.published == nil {
		r.published = map[routing.Key]*routing.Route{}
	}
	if route != nil {
		r.published[key] = route
	} else {
		delete(r.published, key)
	}
	r.mu.Unlock()
	switch {
	case route == nil && known:
		r.Gateway.DeleteRoute(key)
	case route != nil && !same:
		r.Gateway.SetRoute(route)
	}
}

// write stores the status that follows from findings, unless it is stored already.
func (r *Reconciler) write(ctx context.Context, writer *reconciler.StatusWriter, observed *servingv1beta1.DomainMapping, found *findings) error {
	key := keyOf(observed)
	write := writer.DeferUnknown
	if found.claimed.Status == corev1.ConditionTrue && !claimed(observed) {
		// The status decides who keeps the host name.
		write = writer.Write
	}
	if found.reached() && !found.unserved && !r.Gateway.ServedByAll(key, func() { r.Queue.Enqueue(key) }) {
		found.unserved = true
		if claimed(observed) {
			write = writer.Defer
		}
	}
	current := *observed
	current.Status = found.status(observed, metav1.NewTime(r.Clock.Now()))
	if equality.Semantic.DeepEqual(observed.Status, current.Status) {
		return nil
	}
	written, err := write(ctx, reconciler.UpdateOf(r.Client.DomainMappings(observed.Namespace), observed, &current))
	if !written {
		return err
	}
	reconciler.RecordReady(r.Recorder, &current, observed.Status.Conditions, current.Status.Conditions)
	return nil
}

// setFinalizers replaces the finalizers of a DomainMapping, and returns it.
func (r *Reconciler) setFinalizers(ctx context.Context, mapping *servingv1beta1.DomainMapping, finalizers []string) (*servingv1beta1.DomainMapping, error) {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"finalizers": finalizers, "resourceVersion": mapping.ResourceVersion}})
	if err != nil {
		return nil, err
	}
	return r.Client.DomainMappings(mapping.Namespace).Patch(ctx, mapping.Name, types.MergePatchType, patch, metav1.PatchOptions{})
}

// release deletes the claim of a deleted DomainMapping if the server creates claims, and lets the deletion complete.
func (r *Reconciler) release(ctx context.Context, mapping *servingv1beta1.DomainMapping) error {
	if !slices.Contains(mapping.Finalizers, servingv1beta1.DomainMappingFinalizer) {
		return nil
	}
	if r.Settings().Network.AutocreateClusterDomainClaims {
		// The informer may not have received a claim that was just created, which would remain.
		claim, err := r.ClaimsClient.ClusterDomainClaims().Get(ctx, mapping.Name, metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("get ClusterDomainClaim %q: %w", mapping.Name, err)
		}
		// The server does not create claims of wildcards.
		if err == nil && claim.Spec.Namespace == mapping.Namespace && !networkingv1alpha1.IsWildcard(claim.Annotations) {
			err := r.ClaimsClient.ClusterDomainClaims().Delete(ctx, claim.Name, metav1.DeleteOptions{
				Preconditions: &metav1.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion},
			})
			if err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("delete ClusterDomainClaim %q: %w", claim.Name, err)
			}
		}
	}
	rest := slices.DeleteFunc(slices.Clone(mapping.Finalizers), func(f string) bool { return f == servingv1beta1.DomainMappingFinalizer })
	if _, err := r.setFinalizers(ctx, mapping, rest); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("remove finalizer: %w", err)
	}
	return nil
}

func keyOf(mapping *servingv1beta1.DomainMapping) routing.Key {
	return routing.Key{Namespace: mapping.Namespace, Name: mapping.Name}
}

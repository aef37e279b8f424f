package apiserver

import (
	"slices"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	networkingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/networking/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/namespace"
	"github.com/knative-apiserver/knative-apiserver/pkg/registry/core/secret"
)

// groupVersions are the API groups served, in the order of their storage encoding.
var groupVersions = []schema.GroupVersion{
	servingv1.SchemeGroupVersion,
	servingv1beta1.SchemeGroupVersion,
	eventingv1.SchemeGroupVersion,
	eventingv1alpha1.SchemeGroupVersion,
	messagingv1.SchemeGroupVersion,
	networkingv1alpha1.SchemeGroupVersion,
}

// storedVersions are the versions in which objects are stored: the versions of this server's groups, and core/v1.
func storedVersions() []schema.GroupVersion {
	return append(slices.Clone(groupVersions), corev1.SchemeGroupVersion)
}

// coreKinds are the kinds of the core group that a server without a host cluster serves.
func coreKinds() []runtime.Object {
	return []runtime.Object{
		&corev1.Event{}, &corev1.EventList{},
		&corev1.Namespace{}, &corev1.NamespaceList{},
		&corev1.ConfigMap{}, &corev1.ConfigMapList{},
		&corev1.Secret{}, &corev1.SecretList{},
		&corev1.ServiceAccount{}, &corev1.ServiceAccountList{},
	}
}

// newScheme returns the scheme of the API server. The types of each kind's only version are also the internal version: no
// conversion is required until a kind has a second version.
func newScheme() *runtime.Scheme {
	scheme := newPublishedScheme()
	internal := func(group string, kinds []runtime.Object) {
		scheme.AddKnownTypes(schema.GroupVersion{Group: group, Version: runtime.APIVersionInternal}, kinds...)
	}
	internal(servingv1.GroupName, servingv1.Kinds())
	internal(servingv1beta1.GroupName, servingv1beta1.Kinds())
	internal(eventingv1.GroupName, append(eventingv1.Kinds(), &eventingv1.TriggerMatch{}))
	internal(eventingv1alpha1.GroupName, append(eventingv1alpha1.Kinds(), &eventingv1alpha1.Redrive{}, &eventingv1alpha1.Replay{}))
	internal(messagingv1.GroupName, messagingv1.Kinds())
	internal(networkingv1alpha1.GroupName, networkingv1alpha1.Kinds())
	internal(corev1.GroupName, coreKinds())
	return scheme
}

// newPublishedScheme returns the scheme without the internal version. OpenAPI derives the names of models from it.
func newPublishedScheme() *runtime.Scheme {
	scheme := runtime.NewScheme()
	utilruntime.Must(servingv1.AddToScheme(scheme))
	utilruntime.Must(servingv1beta1.AddToScheme(scheme))
	utilruntime.Must(scheme.SetVersionPriority(servingv1.SchemeGroupVersion, servingv1beta1.SchemeGroupVersion))
	utilruntime.Must(eventingv1.AddToScheme(scheme))
	utilruntime.Must(eventingv1alpha1.AddToScheme(scheme))
	utilruntime.Must(scheme.SetVersionPriority(eventingv1.SchemeGroupVersion, eventingv1alpha1.SchemeGroupVersion))
	utilruntime.Must(messagingv1.AddToScheme(scheme))
	utilruntime.Must(networkingv1alpha1.AddToScheme(scheme))
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, coreKinds()...)
	utilruntime.Must(event.AddFieldLabels(scheme))
	utilruntime.Must(namespace.Resource().AddFieldLabels(scheme, "Namespace"))
	utilruntime.Must(secret.Resource().AddFieldLabels(scheme, "Secret"))
	scheme.AddKnownTypes(autoscalingv1.SchemeGroupVersion, &autoscalingv1.Scale{})
	// Options and Status are encoded in the legacy group's v1 for all groups.
	v1 := schema.GroupVersion{Version: "v1"}
	metav1.AddToGroupVersion(scheme, v1)
	scheme.AddUnversionedTypes(v1,
		&metav1.Status{},
		&metav1.APIVersions{},
		&metav1.APIGroupList{},
		&metav1.APIGroup{},
		&metav1.APIResourceList{},
	)
	return scheme
}

// storageCodec encodes objects for etcd in the version of their kind, and decodes them.
func storageCodec(scheme *runtime.Scheme, codecs serializer.CodecFactory) runtime.Codec {
	decoder := codecs.DecoderToVersion(storedJSON{scheme: scheme, requests: codecs.UniversalDeserializer()}, runtime.InternalGroupVersioner)
	return runtime.NewCodec(codecs.LegacyCodec(storedVersions()...), decoder)
}

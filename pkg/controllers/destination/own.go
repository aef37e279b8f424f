package destination

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	servingv1beta1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1beta1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// ownKinds returns the kinds of this server, including kinds without an address, whose readiness other objects may depend on.
func ownKinds(informers externalversions.SharedInformerFactory) map[schema.GroupVersionKind]ownKind {
	serving, eventing, messaging := informers.Serving().V1(), informers.Eventing().V1(), informers.Messaging().V1()
	return map[schema.GroupVersionKind]ownKind{
		servingv1.SchemeGroupVersion.WithKind("Service"): kindOf(serving.Services().Informer(), func(o *servingv1.Service) duckv1.AddressStatus {
			return duckv1.AddressStatus{Address: o.Status.Address}
		}),
		servingv1.SchemeGroupVersion.WithKind("Route"): kindOf(serving.Routes().Informer(), func(o *servingv1.Route) duckv1.AddressStatus { return duckv1.AddressStatus{Address: o.Status.Address} }),
		servingv1beta1.SchemeGroupVersion.WithKind("DomainMapping"): kindOf(informers.Serving().V1beta1().DomainMappings().Informer(), func(o *servingv1beta1.DomainMapping) duckv1.AddressStatus {
			return duckv1.AddressStatus{Address: o.Status.Address}
		}),
		servingv1.SchemeGroupVersion.WithKind("Configuration"):  kindOf(serving.Configurations().Informer(), unaddressed[*servingv1.Configuration]),
		servingv1.SchemeGroupVersion.WithKind("Revision"):       kindOf(serving.Revisions().Informer(), unaddressed[*servingv1.Revision]),
		eventingv1.SchemeGroupVersion.WithKind("Broker"):        kindOf(eventing.Brokers().Informer(), func(o *eventingv1.Broker) duckv1.AddressStatus { return o.Status.AddressStatus }),
		eventingv1.SchemeGroupVersion.WithKind("Trigger"):       kindOf(eventing.Triggers().Informer(), unaddressed[*eventingv1.Trigger]),
		messagingv1.SchemeGroupVersion.WithKind("Channel"):      kindOf(messaging.Channels().Informer(), func(o *messagingv1.Channel) duckv1.AddressStatus { return o.Status.AddressStatus }),
		messagingv1.SchemeGroupVersion.WithKind("Subscription"): kindOf(messaging.Subscriptions().Informer(), unaddressed[*messagingv1.Subscription]),
	}
}

// ownKind reads a kind of this server.
type ownKind struct {
	informer cache.SharedIndexInformer
	// read returns false for objects of another type.
	read func(obj any) (state, bool)
}

func (k ownKind) get(ref *duckv1.KReference, name types.NamespacedName) (state, error) {
	obj, ok, err := k.informer.GetIndexer().GetByKey(name.String())
	if err != nil {
		return state{}, err
	}
	found, is := k.read(obj)
	if !ok || !is {
		return state{}, unresolved(ReasonNotFound, "%s does not exist", describe(ref))
	}
	return found, nil
}

func kindOf[O reconciler.Object](informer cache.SharedIndexInformer, addressOf func(O) duckv1.AddressStatus) ownKind {
	return ownKind{informer: informer, read: func(obj any) (state, bool) {
		o, ok := obj.(O)
		if !ok {
			return state{}, false
		}
		at := addressOf(o)
		return state{address: at.Address, addresses: at.Addresses, ready: reconciler.Ready(o), granted: o.GetAnnotations()[AllowFromAnnotationKey]}, true
	}}
}

// unaddressed returns the empty address of objects of kinds without one.
func unaddressed[O reconciler.Object](O) duckv1.AddressStatus { return duckv1.AddressStatus{} }

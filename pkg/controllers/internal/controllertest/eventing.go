package controllertest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/authorization"
)

// SyncEventing updates the informers of all kinds from the server. Call it when all indexes are added.
func (f *Fixture) SyncEventing() {
	f.t.Helper()
	ctx, all := f.t.Context(), metav1.ListOptions{}
	eventing, messaging := f.Factory.Eventing().V1(), f.Factory.Messaging().V1()
	brokers, err := f.Client.EventingV1().Brokers("").List(ctx, all)
	f.replace(eventing.Brokers().Informer(), brokers, err)
	triggers, err := f.Client.EventingV1().Triggers("").List(ctx, all)
	f.replace(eventing.Triggers().Informer(), triggers, err)
	channels, err := f.Client.MessagingV1().Channels("").List(ctx, all)
	f.replace(messaging.Channels().Informer(), channels, err)
	subscriptions, err := f.Client.MessagingV1().Subscriptions("").List(ctx, all)
	f.replace(messaging.Subscriptions().Informer(), subscriptions, err)
	policies, err := f.Client.EventingV1alpha1().EventPolicies("").List(ctx, all)
	f.replace(f.Factory.Eventing().V1alpha1().EventPolicies().Informer(), policies, err)
	f.Sync()
}

// EventPolicies returns the EventPolicies of the server, for f.Senders.
func (f *Fixture) EventPolicies() authorization.Source {
	return authorization.Source{
		Informer: f.Factory.Eventing().V1alpha1().EventPolicies(), Settings: func() authorization.Settings { return f.Senders },
	}
}

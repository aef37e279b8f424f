package controllertest

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	f.Sync()
}

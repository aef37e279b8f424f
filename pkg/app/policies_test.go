package app

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/authorization"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/eventpolicy"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/senders"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/reviews"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/clientset/versioned/fake"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/informers/externalversions"
)

// namedTokens accepts tokens that are the names of their users, with dots for colons.
type namedTokens struct{}

// Create implements reviews.TokenReviewer.
func (namedTokens) Create(_ context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	review.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: review.Spec.Audiences, User: authenticationv1.UserInfo{Username: strings.ReplaceAll(review.Spec.Token, ".", ":")},
	}
	return review, nil
}

// noAccess allows nothing.
type noAccess struct{}

// Create implements reviews.AccessReviewer.
func (noAccess) Create(_ context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	return review, nil
}

// noStreams keeps no events.
type noStreams struct{}

// SetStream implements eventing.Streams.
func (noStreams) SetStream(context.Context, eventing.Stream) error { return nil }

// RemoveStream implements eventing.Streams.
func (noStreams) RemoveStream(context.Context, eventing.Key) error { return nil }

// replicaOf starts the controllers of a replica until ctx is canceled, and returns its senders. Only one replica writes.
func replicaOf(ctx context.Context, t *testing.T, running *sync.WaitGroup, client *fake.Clientset, writes bool) *senders.Table {
	t.Helper()
	factory := externalversions.NewSharedInformerFactory(client, 0)
	resolver := destination.New(ctx, destination.Options{Informers: factory, ClusterDomain: "cluster.local"})
	table := &senders.Table{Streams: noStreams{}, Reviews: reviews.New(reviews.Options{Tokens: namedTokens{}, Access: noAccess{}})}
	source := authorization.Source{
		Informer: factory.Eventing().V1alpha1().EventPolicies(),
		Settings: func() authorization.Settings {
			return authorization.Settings{Authenticated: true, Default: eventing.DenyAll}
		},
	}
	brokers, err := (&broker.Reconciler{
		Client: client.EventingV1(), Streams: table, Recorder: &record.FakeRecorder{}, Clock: clock.RealClock{},
		Addresses: func(eventing.Key) duckv1.AddressStatus { return duckv1.AddressStatus{} },
	}).Controller(factory.Eventing().V1(), source, resolver)
	if err != nil {
		t.Fatal(err)
	}
	policies, err := (&eventpolicy.Reconciler{
		Client: client.EventingV1alpha1(), Authenticated: func() bool { return true }, Recorder: &record.FakeRecorder{}, Clock: clock.RealClock{},
	}).Controller(factory.Eventing().V1alpha1(), resolver)
	if err != nil {
		t.Fatal(err)
	}
	brokers.Lead(func(types.NamespacedName) bool { return writes })
	policies.Lead(func(types.NamespacedName) bool { return writes })
	factory.Start(ctx.Done())
	running.Go(func() { brokers.Run(ctx, 1) })
	running.Go(func() { policies.Run(ctx, 1) })
	running.Go(func() {
		<-ctx.Done()
		factory.Shutdown()
	})
	return table
}

// TestChangesOnReplicas covers that a change of policies, of the object they apply to, or of a sender takes effect within a second on each
// replica, regardless of the one that writes. The time is virtual: it passes only where something waits for it.
func TestChangesOnReplicas(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const ns, alice, bob, triggers = "shop", "alice", "bob", "system:serviceaccount:shop:t-oidc"
		client := fake.NewSimpleClientset(&eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "orders", UID: "1"}})
		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer running.Wait()
		defer stop()
		var replicas []*senders.Table
		for i := range 3 {
			replicas = append(replicas, replicaOf(ctx, t, &running, client, i == 1))
		}
		header := map[string][]string{"Ce-Specversion": {"1.0"}, "Ce-Id": {"1"}, "Ce-Source": {"/s"}, "Ce-Type": {"order"}}
		events, err := event.FromRequest(header, nil)
		if err != nil {
			t.Fatal(err)
		}
		// admits returns the senders that each replica admits.
		admits := func() string {
			var all []string
			for _, table := range replicas {
				var admitted []string
				for _, sender := range []string{alice, bob, triggers} {
					stream := eventing.Key{Kind: eventing.Broker, Namespace: ns, Name: "orders"}
					if _, err := table.Check(t.Context(), stream, []string{"Bearer " + strings.ReplaceAll(sender, ":", ".")}, events); err == nil {
						admitted = append(admitted, sender)
					}
				}
				all = append(all, strings.Join(admitted, " "))
			}
			return strings.Join(all, ", ")
		}
		within := func(limit time.Duration, what string, admitted ...string) {
			t.Helper()
			one := strings.Join(admitted, " ")
			want, start := strings.Join([]string{one, one, one}, ", "), time.Now()
			for synctest.Wait(); admits() != want; synctest.Wait() {
				if time.Since(start) >= limit {
					t.Fatalf("%s: after %s the replicas admit %q, want %q", what, limit, admits(), want)
				}
				<-time.After(limit / 100)
			}
		}
		policies, brokers := client.EventingV1alpha1().EventPolicies(ns), client.EventingV1().Brokers(ns)
		from := func(of ...eventingv1alpha1.EventPolicySpecFrom) *eventingv1alpha1.EventPolicy {
			return &eventingv1alpha1.EventPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "p", ResourceVersion: "1"}, Spec: eventingv1alpha1.EventPolicySpec{From: of}}
		}
		named := func(name string) eventingv1alpha1.EventPolicySpecFrom {
			return eventingv1alpha1.EventPolicySpecFrom{Sub: &name}
		}
		change := func(what string, spec *eventingv1alpha1.EventPolicySpec) {
			t.Helper()
			stored, err := policies.Get(t.Context(), "p", metav1.GetOptions{})
			if err == nil {
				stored.Spec, stored.Generation = *spec, stored.Generation+1
				_, err = policies.Update(t.Context(), stored, metav1.UpdateOptions{})
			}
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}

		within(time.Minute, "start")
		if _, err := policies.Create(t.Context(), from(named(alice)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		within(time.Second, "create", alice)
		change("name another sender", &from(named(bob)).Spec)
		within(time.Second, "name another sender", bob)

		trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "t"}}
		trigger, err = client.EventingV1().Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ref := eventingv1alpha1.EventPolicySpecFrom{Ref: &eventingv1alpha1.EventPolicyFromReference{APIVersion: "eventing.knative.dev/v1", Kind: "Trigger", Name: "t"}}
		change("name a Trigger", &from(named(alice), ref).Spec)
		within(time.Second, "name a Trigger without ServiceAccount")
		trigger.Status.Auth = &duckv1.Auth{ServiceAccountName: ptr.To(strings.TrimPrefix(triggers, "system:serviceaccount:shop:"))}
		if _, err := client.EventingV1().Triggers(ns).UpdateStatus(t.Context(), trigger, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		within(time.Second, "the Trigger has a ServiceAccount", alice, triggers)

		labeled := from(named(alice))
		labeled.Spec.To = []eventingv1alpha1.EventPolicySpecTo{{Selector: &eventingv1alpha1.EventPolicySelector{
			APIVersion: "eventing.knative.dev/v1", Kind: "Broker", LabelSelector: metav1.LabelSelector{MatchLabels: map[string]string{"team": "red"}},
		}}}
		change("select by labels", &labeled.Spec)
		within(time.Second, "select by labels")
		stored, err := brokers.Get(t.Context(), "orders", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		stored.Labels = map[string]string{"team": "red"}
		if _, err := brokers.Update(t.Context(), stored, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		within(time.Second, "label the Broker", alice)
		if err := policies.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		within(time.Second, "delete")
	})
}

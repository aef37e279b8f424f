package eventing

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestDeliveriesAreAuthenticated covers the tokens of deliveries: an event passes from a Broker through a Trigger to a Broker that admits only the
// Trigger's identity, and reaches a subscriber and a reply destination with tokens for their audiences. Without authentication no token is sent.
func TestDeliveriesAreAuthenticated(t *testing.T) {
	ns := host.Namespace(t, "oidc", nil)
	knative := host.Admin.Knative
	setFeature(t, "authentication-oidc", "enabled")
	disable := func(ctx context.Context) error {
		_, err := host.Host.CoreV1().ConfigMaps(harness.SystemNamespace).Patch(ctx, "config-features", types.MergePatchType,
			[]byte(`{"data":{"authentication-oidc":null}}`), metav1.PatchOptions{})
		return err
	}
	t.Cleanup(func() {
		if err := disable(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{"entry", "inner"} {
		if _, err := knative.EventingV1().Brokers(ns).Create(t.Context(), &eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := knative.MessagingV1().Channels(ns).Create(t.Context(), &messagingv1.Channel{ObjectMeta: metav1.ObjectMeta{Name: "channel"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	inner := eventing.Audience(eventing.Key{Kind: eventing.Broker, Namespace: ns, Name: "inner"})
	harness.Eventually(t, "the Broker has an audience", func() error {
		b, err := knative.EventingV1().Brokers(ns).Get(t.Context(), "inner", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if b.Status.Address == nil || ptr.Deref(b.Status.Address.Audience, "") != inner {
			return fmt.Errorf("its address is %+v, want the audience %s", b.Status.Address, inner)
		}
		return nil
	})

	// The names of the cluster are not resolved here, and the server refuses to connect to its own address.
	target, err := url.Parse(brokerURL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httptest.NewServer(httputil.NewSingleHostReverseProxy(target))
	t.Cleanup(proxy.Close)
	toInner := &duckv1.Destination{URI: proxy.URL + "/" + ns + "/inner", Audience: &inner}
	sink := harness.NewSink(t)
	received, replied, plain := sink.At("/received"), sink.At("/replied"), sink.At("/plain")
	trigger := func(broker, name string, to *duckv1.Destination) {
		t.Helper()
		trigger := &eventingv1.Trigger{ObjectMeta: metav1.ObjectMeta{Name: name}}
		trigger.Spec.Broker, trigger.Spec.Subscriber = broker, *to
		if _, err := knative.EventingV1().Triggers(ns).Create(t.Context(), trigger, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	trigger("entry", "allowed", toInner)
	trigger("entry", "plain", &duckv1.Destination{URI: plain.URL})
	trigger("inner", "last", &duckv1.Destination{URI: received.URL, Audience: ptr.To("receiver")})
	subscription := &messagingv1.Subscription{ObjectMeta: metav1.ObjectMeta{Name: "replying"}}
	subscription.Spec.Channel = duckv1.KReference{APIVersion: messagingv1.SchemeGroupVersion.String(), Kind: "Channel", Name: "channel"}
	subscription.Spec.Reply = &duckv1.Destination{URI: replied.URL, Audience: ptr.To("replies")}
	if _, err := knative.MessagingV1().Subscriptions(ns).Create(t.Context(), subscription, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	policy := &eventingv1alpha1.EventPolicy{ObjectMeta: metav1.ObjectMeta{Name: "only-the-trigger"}}
	policy.Spec.To = []eventingv1alpha1.EventPolicySpecTo{{Ref: &eventingv1alpha1.EventPolicyToReference{APIVersion: "eventing.knative.dev/v1", Kind: "Broker", Name: "inner"}}}
	policy.Spec.From = []eventingv1alpha1.EventPolicySpecFrom{{Ref: &eventingv1alpha1.EventPolicyFromReference{APIVersion: "eventing.knative.dev/v1", Kind: "Trigger", Name: "allowed"}}}
	harness.Eventually(t, "the EventPolicy is created", func() error {
		_, err := knative.EventingV1alpha1().EventPolicies(ns).Create(t.Context(), policy, metav1.CreateOptions{})
		return err
	})
	account := func(object string) string {
		return "system:serviceaccount:" + ns + ":" + eventing.AccountName("eventing.knative.dev", "Trigger", object)
	}
	triggerIsReady := func(name string) {
		t.Helper()
		harness.Eventually(t, "Trigger "+name+" is ready", func() error {
			tr, err := knative.EventingV1().Triggers(ns).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			return seen{Status: tr.Status.Status}.says(duckv1.ConditionReady, "True")
		})
	}
	for _, name := range []string{"allowed", "plain", "last"} {
		triggerIsReady(name)
	}
	harness.Eventually(t, "the Subscription is ready", func() error {
		s, err := readSubscription(t.Context(), ns, "replying")
		if err != nil {
			return err
		}
		return s.says(duckv1.ConditionReady, "True")
	})
	harness.Eventually(t, "the EventPolicy names the identity of the Trigger", func() error {
		p, err := knative.EventingV1alpha1().EventPolicies(ns).Get(t.Context(), policy.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.Equal(p.Status.From, []string{account("allowed")}) {
			return fmt.Errorf("its senders are %v", p.Status.From)
		}
		b, err := knative.EventingV1().Brokers(ns).Get(t.Context(), "inner", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(b.Status.Policies) != 1 {
			return fmt.Errorf("the Broker has the policies %v", b.Status.Policies)
		}
		return nil
	})

	host.ServiceAccount(t, ns, "sender")
	send := func(path, audience, id string, want int) error {
		token := ""
		if audience != "" {
			var err error
			if token, err = host.Token(t.Context(), ns, "sender", audience); err != nil {
				return err
			}
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, brokerURL+path, strings.NewReader("hello"))
		if err != nil {
			return err
		}
		for key, value := range map[string]string{"ce-specversion": "1.0", "ce-type": "greeting", "ce-source": "/test", "ce-id": id, "Content-Type": "text/plain"} {
			request.Header.Set(key, value)
		}
		if token != "" {
			request.Header.Set("Authorization", "Bearer "+token)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		response.Body.Close()
		if response.StatusCode != want {
			return fmt.Errorf("POST %s: %s, want %d", path, response.Status, want)
		}
		return nil
	}
	if err := send("/"+ns+"/inner", inner, "refused", http.StatusForbidden); err != nil {
		t.Error(err)
	}
	if err := send("/"+ns+"/inner", "", "unknown", http.StatusUnauthorized); err != nil {
		t.Error(err)
	}
	entry := eventing.Audience(eventing.Key{Kind: eventing.Broker, Namespace: ns, Name: "entry"})
	if err := send("/"+ns+"/entry", entry, "1", http.StatusAccepted); err != nil {
		t.Fatal(err)
	}
	channel := eventing.Audience(eventing.Key{Kind: eventing.Channel, Namespace: ns, Name: "channel"})
	if err := send("/channels/"+ns+"/channel", channel, "2", http.StatusAccepted); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if err := errors.Join(received.AwaitAll(ctx, []string{"1"}), plain.AwaitAll(ctx, []string{"1"}), replied.AwaitAll(ctx, []string{"2"})); err != nil {
		t.Fatalf("%v\n%s", err, host.Logs())
	}
	verify := func(s *harness.Subscriber, audience, user string) {
		t.Helper()
		for _, d := range s.Deliveries() {
			token, ok := strings.CutPrefix(d.Header.Get("Authorization"), "Bearer ")
			if !ok {
				t.Errorf("event %s has no token", d.ID)
				continue
			}
			for _, audiences := range [][]string{{audience}, nil} {
				review, err := host.Host.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
					Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if want := audiences != nil; review.Status.Authenticated != want || want && review.Status.User.Username != user {
					t.Errorf("review for the audiences %v: authenticated %t as %q, want %t as %q", audiences, review.Status.Authenticated, review.Status.User.Username, want, user)
				}
			}
			if strings.Contains(host.Logs(), token) {
				t.Error("the log has a token")
			}
		}
	}
	verify(received, "receiver", account("last"))
	verify(replied, "replies", "system:serviceaccount:"+ns+":"+eventing.AccountName("messaging.knative.dev", "Subscription", "replying"))
	withoutToken := func(s *harness.Subscriber, id string) {
		t.Helper()
		for _, d := range s.Deliveries() {
			if d.ID == id && d.Header.Get("Authorization") != "" {
				t.Errorf("event %s was delivered to a destination without audience with a token", d.ID)
			}
		}
	}
	withoutToken(plain, "1")

	// A recipient with a token for the API could act as the ServiceAccount there.
	api := sink.At("/api")
	trigger("entry", "api", &duckv1.Destination{URI: api.URL, Audience: ptr.To("https://kubernetes.default.svc.cluster.local")})
	triggerIsReady("api")
	if err := send("/"+ns+"/entry", entry, "3", http.StatusAccepted); err != nil {
		t.Fatal(err)
	}
	if err := plain.AwaitAll(ctx, []string{"3"}); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the Trigger reports why it does not deliver", func() error {
		tr, err := knative.EventingV1().Triggers(ns).Get(ctx, "api", metav1.GetOptions{})
		if err != nil {
			return err
		}
		health := tr.Status.Conditions.Get("DeliveryHealthy")
		if health == nil || health.Status != "False" || !strings.Contains(health.Message, "get a token of ServiceAccount") {
			return fmt.Errorf("DeliveryHealthy is %+v", health)
		}
		return nil
	})
	if n := api.Requests(); n > 0 {
		t.Errorf("%d requests to a destination with the audience of the API", n)
	}

	if err := disable(ctx); err != nil {
		t.Fatal(err)
	}
	harness.Eventually(t, "the ServiceAccounts are deleted", func() error {
		for _, name := range []string{"allowed", "last", "plain", "api"} {
			_, err := host.Host.CoreV1().ServiceAccounts(ns).Get(ctx, eventing.AccountName("eventing.knative.dev", "Trigger", name), metav1.GetOptions{})
			if err == nil {
				return fmt.Errorf("Trigger %s has a ServiceAccount", name)
			}
			if !apierrors.IsNotFound(err) {
				return err
			}
		}
		tr, err := knative.EventingV1().Triggers(ns).Get(ctx, "last", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := tr.Status.Conditions.Get(duckv1.ConditionOIDCIdentityCreated); tr.Status.Auth != nil || c == nil || c.Reason != "authentication-oidc feature disabled" {
			return fmt.Errorf("status.auth is %v, and OIDCIdentityCreated %v", tr.Status.Auth, c)
		}
		// Each Broker admits senders without tokens once it was reconciled.
		if err := send("/"+ns+"/inner", "", "probe", http.StatusAccepted); err != nil {
			return err
		}
		return send("/"+ns+"/entry", "", "4", http.StatusAccepted)
	})
	if err := received.AwaitAll(ctx, []string{"4"}); err != nil {
		t.Fatal(err)
	}
	withoutToken(received, "4")
	if err := api.AwaitAll(ctx, []string{"3", "4"}); err != nil {
		t.Errorf("events that waited for a token: %v", err)
	}
}

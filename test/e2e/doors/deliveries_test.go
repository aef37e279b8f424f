package doors

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestDeliveries covers the identities of Triggers and Subscriptions: their deliveries carry a token for the audience of the recipient. A Broker
// admits the Trigger that its EventPolicy names, a restricted Service the Trigger that may invoke it, and others get 403. It does not run in
// parallel, because its settings concern all Brokers.
func TestDeliveries(t *testing.T) {
	set(t, map[string]string{"authentication-oidc": "enabled"})
	s, site := newSpace(t, "deliveries", "serving.knative.dev/invocation: rbac")
	sink := harness.NewSinkOn(t, node.Address)
	chained, subscribed, denied, refused := sink.At("/chained"), sink.At("/subscribed"), sink.At("/denied"), sink.At("/refused")
	const receiver = "receiver"
	receiving := func(to *harness.Subscriber) string { return fmt.Sprintf("{uri: %q, audience: %s}", to.URL, receiver) }
	deadLetters := func(to *harness.Subscriber) string { return fmt.Sprintf("{deadLetterSink: {uri: %q}}", to.URL) }
	const inner = "{ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: inner}}"
	service := fmt.Sprintf("{ref: {apiVersion: serving.knative.dev/v1, kind: Service, name: hello}, audience: %q}", site)
	s.Apply(t, broker, strings.ReplaceAll(broker, "default", "inner"),
		"{apiVersion: messaging.knative.dev/v1, kind: Channel, metadata: {name: orders}}",
		trigger("to-broker", inner, "{}"), trigger("to-broker-denied", inner, deadLetters(denied)),
		trigger("to-service", service, "{}"), trigger("to-service-denied", service, deadLetters(refused)),
		strings.ReplaceAll(trigger("last", receiving(chained), "{}"), "broker: default", "broker: inner"),
		fmt.Sprintf(`{apiVersion: messaging.knative.dev/v1, kind: Subscription, metadata: {name: copies},
			spec: {channel: {apiVersion: messaging.knative.dev/v1, kind: Channel, name: orders}, subscriber: %s}}`, receiving(subscribed)))
	accounts := map[string]string{"Subscription/copies": eventing.AccountName("messaging.knative.dev", "Subscription", "copies")}
	for _, name := range []string{"to-broker", "to-broker-denied", "to-service", "to-service-denied", "last"} {
		accounts["Trigger/"+name] = eventing.AccountName("eventing.knative.dev", "Trigger", name)
	}
	user := func(name string) string { return "system:serviceaccount:" + s.Name + ":" + accounts[name] }
	for name, account := range accounts {
		untilIdentified(t, s.Name, name, account)
		s.Ready(t, strings.ToLower(name))
	}
	s.Apply(t, `
apiVersion: eventing.knative.dev/v1alpha1
kind: EventPolicy
metadata: {name: only-the-trigger}
spec:
  to: [{ref: {apiVersion: eventing.knative.dev/v1, kind: Broker, name: inner}}]
  from: [{ref: {apiVersion: eventing.knative.dev/v1, kind: Trigger, name: to-broker}}]`)
	s.Ready(t, "eventpolicy/only-the-trigger")
	node.AsCluster().Bind(t, s.Name, user("Trigger/to-service"), "ClusterRole", "knative-serving-invoker")
	untilPermitted(t, s.Name, user("Trigger/to-service"))
	node.AsCluster().ServiceAccount(t, s.Name, "sender")
	untilEnforced(t, s.Name, "only-the-trigger")

	for name, kind := range map[string]eventing.Kind{"Broker/default": eventing.Broker, "Channel/orders": eventing.Channel} {
		_, object, _ := strings.Cut(name, "/")
		audience := eventing.Audience(eventing.Key{Kind: kind, Namespace: s.Name, Name: object})
		to := untilAddressed(t, s.Name, name, name+" has its audience", func(a *duckv1.Addressable) bool { return a.Audience != nil && *a.Audience == audience })
		token, err := node.AsCluster().Token(t.Context(), s.Name, "sender", audience)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "an event to "+name+" is accepted", func(ctx context.Context) error {
			code, body, err := post(ctx, to, "1", token)
			if err == nil && code != http.StatusAccepted {
				err = fmt.Errorf("%d %s", code, body)
			}
			return err
		})
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var missing []error
	for _, subscriber := range []*harness.Subscriber{chained, subscribed, denied, refused} {
		missing = append(missing, subscriber.AwaitAll(ctx, []string{"1"}))
	}
	if err := errors.Join(missing...); err != nil {
		t.Fatal(err)
	}
	verify(t, chained, receiver, user("Trigger/last"))
	verify(t, subscribed, receiver, user("Subscription/copies"))
	for what, subscriber := range map[string]*harness.Subscriber{"the Broker": denied, "the Service": refused} {
		for _, d := range subscriber.Deliveries() {
			if got := d.Header.Get("Ce-Knativeerrorcode"); got != "403" || d.Header.Get("Authorization") != "" {
				t.Errorf("%s refused event %s with the code %q, want 403; its dead letter has a token: %t", what, d.ID, got, d.Header.Get("Authorization") != "")
			}
		}
	}
	// The application reports each event with its sender, as the gateway verified it.
	want := fmt.Sprintf("%q:%q", "user", user("Trigger/to-service"))
	eventually(t, "the Service gets the event of the permitted Trigger", func(ctx context.Context) error {
		pods, err := node.Host.CoreV1().Pods(s.Name).List(ctx, metav1.ListOptions{LabelSelector: "serving.knative.dev/service=hello"})
		if err != nil {
			return err
		}
		var logs string
		for i := range pods.Items {
			log, err := s.Log(ctx, pods.Items[i].Name)
			if err != nil {
				return err
			}
			logs += log
		}
		if !strings.Contains(logs, want) {
			return fmt.Errorf("it logged %s, without %s", logs, want)
		}
		if strings.Contains(logs, accounts["Trigger/to-service-denied"]) {
			t.Errorf("the Service got the event of the other Trigger: %s", logs)
		}
		return nil
	})
}

// untilIdentified waits until the status of an object, such as Trigger/orders, names its ServiceAccount.
func untilIdentified(t *testing.T, namespace, name, account string) {
	t.Helper()
	kind, object, _ := strings.Cut(name, "/")
	eventually(t, name+" has an identity", func(ctx context.Context) error {
		u, err := node.Admin.Dynamic.Resource(harness.KindOf(kind).GVR()).Namespace(namespace).Get(ctx, object, metav1.GetOptions{})
		if err != nil {
			return err
		}
		got, _, err := unstructured.NestedString(u.Object, "status", "auth", "serviceAccountName")
		if err == nil && got != account {
			err = fmt.Errorf("status.auth.serviceAccountName is %q, want %q", got, account)
		}
		return err
	})
}

// untilPermitted waits until the host lets a user invoke the Service hello.
func untilPermitted(t *testing.T, namespace, user string) {
	t.Helper()
	eventually(t, user+" may invoke the Service", func(ctx context.Context) error {
		review, err := node.Host.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
			Spec: authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
				Namespace: namespace, Verb: "invoke", Group: "serving.knative.dev", Resource: "services", Name: "hello",
			}},
		}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = fmt.Errorf("the review is %+v", review.Status)
		}
		return err
	})
}

// untilEnforced waits until each replica rejects the ServiceAccount sender at the Broker inner because of a policy.
func untilEnforced(t *testing.T, namespace, policy string) {
	t.Helper()
	token, err := node.AsCluster().Token(t.Context(), namespace, "sender", eventing.Audience(eventing.Key{Kind: eventing.Broker, Namespace: namespace, Name: "inner"}))
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	eventually(t, "each replica enforces the policy", func(ctx context.Context) error {
		pods, err := node.ServerPods(ctx)
		if err != nil {
			return err
		}
		if len(pods) != harness.Replicas {
			return fmt.Errorf("there are %d replicas", len(pods))
		}
		for i := range pods {
			address := "http://" + net.JoinHostPort(pods[i].Status.PodIP, "8082") + "/" + namespace + "/inner"
			request, err := newEvent(ctx, address, "early", token)
			if err != nil {
				return err
			}
			code, body, err := harness.Exchange(client, request)
			if err != nil {
				return err
			}
			if code != http.StatusForbidden || !strings.Contains(body, policy) {
				return fmt.Errorf("%s answers %d %s", pods[i].Name, code, body)
			}
		}
		return nil
	})
}

// verify checks that all deliveries have a token of a user for one audience only.
func verify(t *testing.T, subscriber *harness.Subscriber, audience, user string) {
	t.Helper()
	for _, d := range subscriber.Deliveries() {
		token, found := strings.CutPrefix(d.Header.Get("Authorization"), "Bearer ")
		if !found {
			t.Errorf("event %s was delivered without a token", d.ID)
			continue
		}
		review := func(audiences ...string) authenticationv1.TokenReviewStatus {
			t.Helper()
			review, err := node.Host.AuthenticationV1().TokenReviews().Create(t.Context(), &authenticationv1.TokenReview{
				Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: audiences},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return review.Status
		}
		if status := review(audience); !status.Authenticated || status.User.Username != user || !slices.Equal(status.Audiences, []string{audience}) {
			t.Errorf("the token of event %s is one of %q for %q (authenticated: %t, %s), want %q for %q",
				d.ID, status.User.Username, status.Audiences, status.Authenticated, status.Error, user, audience)
		}
		if review().Authenticated {
			t.Errorf("the token of event %s is valid for the API", d.ID)
		}
	}
}

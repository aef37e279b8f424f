package authorization_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/authorization"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

type change func(*eventingv1alpha1.EventPolicy)

// policy returns a ready EventPolicy of all objects.
func policy(name string, changes ...change) *eventingv1alpha1.EventPolicy {
	p := &eventingv1alpha1.EventPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}}
	p.Status.Conditions = duckv1.Conditions{{Type: duckv1.ConditionReady, Status: corev1.ConditionTrue}}
	p.Spec.From = []eventingv1alpha1.EventPolicySpecFrom{{Sub: &name}}
	// Of the former spec: the status of this one is not written yet.
	p.Status.From = []string{"former"}
	for _, change := range changes {
		change(p)
	}
	return p
}

func ref(apiVersion, kind, name string) change {
	return func(p *eventingv1alpha1.EventPolicy) {
		p.Spec.To = append(p.Spec.To, eventingv1alpha1.EventPolicySpecTo{Ref: &eventingv1alpha1.EventPolicyToReference{APIVersion: apiVersion, Kind: kind, Name: name}})
	}
}

func selector(apiVersion, kind string, of metav1.LabelSelector) change {
	return func(p *eventingv1alpha1.EventPolicy) {
		p.Spec.To = append(p.Spec.To, eventingv1alpha1.EventPolicySpecTo{Selector: &eventingv1alpha1.EventPolicySelector{LabelSelector: of, APIVersion: apiVersion, Kind: kind}})
	}
}

func unready(p *eventingv1alpha1.EventPolicy) {
	p.Status.Conditions[0].Status = corev1.ConditionFalse
}

// TestOf covers the EventPolicies that apply to a Broker, their order, and the reasons of the condition.
func TestOf(t *testing.T) {
	labeled := func(values ...string) metav1.LabelSelector {
		return metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpIn, Values: values}}}
	}
	enabled := authorization.Settings{Authenticated: true, Default: eventing.AllowSameNamespace}
	const ready = "True"
	var many []*eventingv1alpha1.EventPolicy
	for i := range 12 {
		many = append(many, policy(fmt.Sprintf("p%02d", i), unready))
	}
	// notReady are the applying policies that are not ready, by the name of the case.
	notReady := map[string][]string{
		"some not ready": {"b", "c"}, "all not ready": {"a"}, "many not ready": {"p00", "p01", "p02", "p03", "p04", "p05", "p06", "p07", "p08", "p09", "p10", "p11"},
	}
	for name, tt := range map[string]struct {
		settings  authorization.Settings
		policies  []*eventingv1alpha1.EventPolicy
		want      []string
		condition string
	}{
		"disabled":        {authorization.Settings{}, []*eventingv1alpha1.EventPolicy{policy("a", unready)}, nil, `True OIDCDisabled Feature "authentication-oidc" must be enabled to support Authorization`},
		"none":            {enabled, nil, nil, `True DefaultAuthorizationMode Default authz mode is "Allow-Same-Namespace"`},
		"none, allow all": {authorization.Settings{Authenticated: true, Default: eventing.AllowAll}, nil, nil, `True DefaultAuthorizationMode Default authz mode is "Allow-All"`},
		"none, deny all":  {authorization.Settings{Authenticated: true, Default: eventing.DenyAll}, nil, nil, `True DefaultAuthorizationMode Default authz mode is "Deny-All"`},
		"by name":         {enabled, []*eventingv1alpha1.EventPolicy{policy("b"), policy("a")}, []string{"a", "b"}, ready},
		"references of senders": {enabled, []*eventingv1alpha1.EventPolicy{policy("a", func(p *eventingv1alpha1.EventPolicy) {
			p.Spec.From = append(p.Spec.From, eventingv1alpha1.EventPolicySpecFrom{Ref: &eventingv1alpha1.EventPolicyFromReference{}})
			p.Status.From = []string{"a"}
		})}, []string{"a"}, ready},
		"another namespace": {
			enabled, []*eventingv1alpha1.EventPolicy{policy("a", func(p *eventingv1alpha1.EventPolicy) { p.Namespace = "other" })},
			nil, `True DefaultAuthorizationMode Default authz mode is "Allow-Same-Namespace"`,
		},
		"references": {enabled, []*eventingv1alpha1.EventPolicy{
			policy("a", ref("eventing.knative.dev/v1", "Broker", "orders")), policy("b", ref("eventing.knative.dev/v9", "broker", "ORDERS")),
			policy("c", ref("eventing.knative.dev/v1", "Broker", "other"), ref("eventing.knative.dev/v1", "Broker", "orders")),
			policy("d", ref("eventing.knative.dev/v1", "Broker", "other")), policy("e", ref("messaging.knative.dev/v1", "Broker", "orders")),
			policy("f", ref("eventing.knative.dev/v1", "Trigger", "orders")), policy("g", ref("a/b/c", "Broker", "orders")),
		}, []string{"a", "b", "c"}, ready},
		"selectors": {enabled, []*eventingv1alpha1.EventPolicy{
			policy("a", selector("eventing.knative.dev/v1", "Broker", metav1.LabelSelector{})),
			policy("b", selector("eventing.knative.dev/v1", "Broker", labeled("red", "blue"))),
			policy("c", selector("eventing.knative.dev/v1", "Broker", labeled("green"))),
			policy("d", selector("messaging.knative.dev/v1", "Channel", metav1.LabelSelector{})),
			policy("e", selector("", "", metav1.LabelSelector{})),
			policy("f", selector("eventing.knative.dev/v1", "Broker", metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: "Like"}}})),
		}, []string{"a", "b"}, ready},
		"some not ready": {enabled, []*eventingv1alpha1.EventPolicy{policy("a"), policy("c", unready), policy("b", func(p *eventingv1alpha1.EventPolicy) { p.Status = eventingv1alpha1.EventPolicyStatus{} })},
			[]string{"a"}, "False EventPoliciesNotReady event policies b, c are not ready"},
		"all not ready": {enabled, []*eventingv1alpha1.EventPolicy{policy("a", unready)}, nil, "False EventPoliciesNotReady event policies a are not ready"},
		"many not ready": {enabled, many, nil,
			"False EventPoliciesNotReady event policies p00, p01, p02, p03, p04, p05, p06, p07, p08, p09, and 2 more are not ready"},
		"others not ready": {enabled, []*eventingv1alpha1.EventPolicy{policy("a"), policy("b", unready, ref("eventing.knative.dev/v1", "Broker", "other"))}, []string{"a"}, ready},
	} {
		t.Run(name, func(t *testing.T) {
			var objects []runtime.Object
			for _, p := range tt.policies {
				objects = append(objects, p)
			}
			w := controllertest.New(t, objects...)
			w.Senders = tt.settings
			policies, err := w.EventPolicies().Of(schema.GroupKind{Group: eventingv1.GroupName, Kind: "Broker"}, reconciler.New("broker", nil), w.Factory.Eventing().V1().Brokers().Informer())
			if err != nil {
				t.Fatal(err)
			}
			w.SyncEventing()
			got, err := policies.Of(&eventingv1.Broker{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "orders", Labels: map[string]string{"team": "red"}}})
			if err != nil {
				t.Fatal(err)
			}
			if (got.Senders == nil) == tt.settings.Authenticated {
				t.Fatalf("senders: %+v", got.Senders)
			}
			var status, senders []string
			for _, p := range got.Status.Policies {
				if p.APIVersion != "eventing.knative.dev/v1alpha1" {
					t.Errorf("apiVersion of %s is %s", p.Name, p.APIVersion)
				}
				status = append(status, p.Name)
			}
			if got.Senders != nil {
				if got.Senders.Default != tt.settings.Default {
					t.Errorf("default mode is %s", got.Senders.Default)
				}
				if diff := cmp.Diff(notReady[name], got.Senders.Unready); diff != "" {
					t.Errorf("policies that are not ready (-want +got):\n%s", diff)
				}
				for _, p := range got.Senders.Policies {
					senders = append(senders, p.Name)
					if diff := cmp.Diff([]string{p.Name}, p.Subjects); diff != "" {
						t.Errorf("subjects of %s (-want +got):\n%s", p.Name, diff)
					}
				}
			}
			if diff := cmp.Diff([][]string{tt.want, tt.want}, [][]string{status, senders}); diff != "" {
				t.Errorf("policies in status, for the data plane (-want +got):\n%s", diff)
			}
			condition := string(got.Condition.Status)
			if got.Condition.Reason != "" {
				condition += " " + got.Condition.Reason + " " + got.Condition.Message
			}
			if condition != tt.condition || got.Condition.Type != duckv1.ConditionEventPoliciesReady {
				t.Errorf("condition %s is %q, want %q", got.Condition.Type, condition, tt.condition)
			}
		})
	}
}

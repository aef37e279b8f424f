package eventpolicy

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/utils/clock"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/destination"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
)

var key = types.NamespacedName{Namespace: "shop", Name: "orders"}

func policy(from ...eventingv1alpha1.EventPolicySpecFrom) *eventingv1alpha1.EventPolicy {
	return &eventingv1alpha1.EventPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name, Generation: 3},
		Spec:       eventingv1alpha1.EventPolicySpec{From: from},
	}
}

func sub(name string) eventingv1alpha1.EventPolicySpecFrom {
	return eventingv1alpha1.EventPolicySpecFrom{Sub: &name}
}

func source(namespace, name string) eventingv1alpha1.EventPolicySpecFrom {
	return eventingv1alpha1.EventPolicySpecFrom{Ref: &eventingv1alpha1.EventPolicyFromReference{
		APIVersion: sources.GroupVersion().String(), Kind: "PingSource", Namespace: namespace, Name: name,
	}}
}

var sources = schema.GroupVersionResource{Group: "sources.knative.dev", Version: "v1", Resource: "pingsources"}

func pingSource(namespace, name string, auth map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{"status": map[string]any{"auth": auth}}}
	u.SetGroupVersionKind(sources.GroupVersion().WithKind("PingSource"))
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// TestStatus covers conditions and senders: spec.from as it is, and the ServiceAccounts in status.auth of the objects that it refers to.
func TestStatus(t *testing.T) {
	for name, tt := range map[string]struct {
		policy   *eventingv1alpha1.EventPolicy
		disabled bool
		from     []string
		want     map[duckv1.ConditionType]string
	}{
		"names": {policy: policy(sub("alice"), sub("system:serviceaccount:*")), from: []string{"alice", "system:serviceaccount:*"}, want: map[duckv1.ConditionType]string{
			"Ready": "True", "AuthenticationEnabled": "True", "SubjectsResolved": "True",
		}},
		"no senders": {policy: policy(), want: map[duckv1.ConditionType]string{
			"Ready": "True", "AuthenticationEnabled": "True", "SubjectsResolved": "True",
		}},
		"objects": {
			policy: policy(source("", "one"), sub("bob"), source("other", "two")),
			from:   []string{"system:serviceaccount:shop:one-oidc", "bob", "system:serviceaccount:other:a", "system:serviceaccount:other:b"},
			want:   map[duckv1.ConditionType]string{"Ready": "True", "AuthenticationEnabled": "True", "SubjectsResolved": "True"},
		},
		"no identity": {policy: policy(sub("bob"), source("shop", "none")), want: map[duckv1.ConditionType]string{
			"Ready":                 `False SubjectsNotResolved sources.knative.dev/v1 PingSource "shop/none" has no ServiceAccount in status.auth`,
			"AuthenticationEnabled": "True",
			"SubjectsResolved":      `False SubjectsNotResolved sources.knative.dev/v1 PingSource "shop/none" has no ServiceAccount in status.auth`,
		}},
		"no object": {policy: policy(source("shop", "absent")), want: map[duckv1.ConditionType]string{
			"Ready":                 `False SubjectsNotResolved sources.knative.dev/v1 PingSource "shop/absent" does not exist`,
			"AuthenticationEnabled": "True",
			"SubjectsResolved":      `False SubjectsNotResolved sources.knative.dev/v1 PingSource "shop/absent" does not exist`,
		}},
		"no authentication": {policy: policy(sub("alice")), disabled: true, from: []string{"alice"}, want: map[duckv1.ConditionType]string{
			"Ready":                 `False OIDCAuthenticationDisabled Feature "authentication-oidc" must be enabled to support Authorization.`,
			"AuthenticationEnabled": `False OIDCAuthenticationDisabled Feature "authentication-oidc" must be enabled to support Authorization.`,
			"SubjectsResolved":      "True",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := controllertest.New(t, tt.policy)
				objects := dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{sources: "PingSourceList"},
					pingSource("shop", "one", map[string]any{"serviceAccountName": "one-oidc"}),
					pingSource("other", "two", map[string]any{"serviceAccountNames": []any{"a", "b"}}),
					pingSource("shop", "none", map[string]any{}),
				)
				mapper := meta.NewDefaultRESTMapper(nil)
				mapper.Add(sources.GroupVersion().WithKind("PingSource"), meta.RESTScopeNamespace)
				host := &destination.Host{Client: objects, Mapper: mapper, Clock: clock.RealClock{}}
				resolver := destination.New(t.Context(), destination.Options{Informers: w.Factory, Host: host, ClusterDomain: "cluster.local"})
				r := &Reconciler{Client: w.Client.EventingV1alpha1(), Authenticated: func() bool { return !tt.disabled }, Recorder: w.Recorder, Clock: w.Clock}
				controller, err := r.Controller(w.Factory.Eventing().V1alpha1(), resolver)
				if err != nil {
					t.Fatal(err)
				}
				w.Run(controller, func() {
					synctest.Wait()
					got, err := w.Client.EventingV1alpha1().EventPolicies(key.Namespace).Get(t.Context(), key.Name, metav1.GetOptions{})
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(tt.from, got.Status.From); diff != "" {
						t.Errorf("senders (-want +got):\n%s", diff)
					}
					conditions := map[duckv1.ConditionType]string{}
					for _, c := range got.Status.Conditions {
						conditions[c.Type] = strings.TrimSpace(strings.Join([]string{string(c.Status), c.Reason, c.Message}, " "))
					}
					if diff := cmp.Diff(tt.want, conditions); diff != "" {
						t.Errorf("conditions (-want +got):\n%s", diff)
					}
				})
			})
		})
	}
}

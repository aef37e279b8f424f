package manifests

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// rules returns the rules of all roles, by kind and name.
func rules(t *testing.T, objects objects) map[string][]rbacv1.PolicyRule {
	t.Helper()
	found := map[string][]rbacv1.PolicyRule{}
	for _, role := range of[rbacv1.ClusterRole](t, objects, "ClusterRole") {
		found["ClusterRole "+role.Name] = role.Rules
	}
	for _, role := range of[rbacv1.Role](t, objects, "Role") {
		found["Role "+role.Name] = role.Rules
	}
	return found
}

// TestNoWildcards: no role has wildcards, or permits escalation.
func TestNoWildcards(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for role, rules := range rules(t, objects) {
			for _, rule := range rules {
				for _, word := range slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs, rule.NonResourceURLs) {
					if strings.Contains(word, "*") {
						t.Errorf("%s has a wildcard: %+v", role, rule)
					}
				}
				if verbs := sets.New(rule.Verbs...); verbs.HasAny("bind", "escalate", "impersonate") {
					t.Errorf("%s may widen its own rights: %+v", role, rule)
				}
				secrets := slices.Contains(rule.Resources, "secrets")
				if secrets && strings.HasPrefix(role, "ClusterRole") && !slices.Equal(rule.Verbs, []string{"get"}) {
					t.Errorf("%s may do more with Secrets than to get one that it knows: %+v", role, rule)
				}
				if slices.Contains(rule.Resources, "pods") && sets.New(rule.Verbs...).HasAny("delete", "deletecollection", "update", "patch") {
					t.Errorf("%s may do more with Pods than the code does: %+v", role, rule)
				}
				if slices.Contains(rule.Resources, "pods/exec") || slices.Contains(rule.Resources, "nodes") {
					t.Errorf("%s: %+v", role, rule)
				}
			}
		}
	})
}

// TestDuckRoles: a user who may use channels or addressable objects of all kinds may also use Channels and Brokers.
func TestDuckRoles(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for label, want := range map[string]map[string][]string{
			"duck.knative.dev/channelable": {
				"messaging.knative.dev/channels":        {"create", "get", "list", "watch", "update", "patch"},
				"messaging.knative.dev/channels/status": {"get", "list", "watch", "update", "patch"},
			},
			"duck.knative.dev/addressable": {
				"serving.knative.dev/services": {"get", "list", "watch"}, "serving.knative.dev/routes": {"get", "list", "watch"},
				"eventing.knative.dev/brokers": {"get", "list", "watch"}, "messaging.knative.dev/channels": {"get", "list", "watch"},
			},
		} {
			have := map[string]sets.Set[string]{}
			for _, role := range of[rbacv1.ClusterRole](t, objects, "ClusterRole") {
				if role.Labels[label] != "true" {
					continue
				}
				for _, rule := range role.Rules {
					for _, group := range rule.APIGroups {
						for _, resource := range rule.Resources {
							have[group+"/"+resource] = sets.New(rule.Verbs...).Union(have[group+"/"+resource])
						}
					}
				}
			}
			for resource, verbs := range want {
				if !have[resource].HasAll(verbs...) {
					t.Errorf("roles with label %s allow %v of %s, want %v", label, sets.List(have[resource]), resource, verbs)
				}
			}
		}
	})
}

// TestBindings: the subjects and roles of all bindings exist, and each workload's ServiceAccount is bound.
func TestBindings(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		accounts, bound := sets.New[string](), sets.New[string]()
		for _, account := range of[corev1.ServiceAccount](t, objects, "ServiceAccount") {
			accounts.Insert(account.Name)
		}
		roles := rules(t, objects)
		check := func(name string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
			_, ours := roles[ref.Kind+" "+ref.Name]
			if !ours && ref.Name != "system:auth-delegator" && ref.Name != "extension-apiserver-authentication-reader" {
				t.Errorf("%s binds to %s %s, which is not there", name, ref.Kind, ref.Name)
			}
			for _, subject := range subjects {
				if subject.Kind != rbacv1.ServiceAccountKind || subject.Namespace != system || !accounts.Has(subject.Name) {
					t.Errorf("%s binds %+v, which is not there", name, subject)
				}
				bound.Insert(subject.Name)
			}
		}
		for _, b := range of[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding") {
			check(b.Name, b.RoleRef, b.Subjects)
		}
		for _, b := range of[rbacv1.RoleBinding](t, objects, "RoleBinding") {
			check(b.Name, b.RoleRef, b.Subjects)
		}
		used := sets.New[string]()
		for _, w := range workloads(t, objects) {
			used.Insert(w.template.Spec.ServiceAccountName)
		}
		if !used.Equal(accounts) || !used.Equal(bound) {
			t.Errorf("Pods use the ServiceAccounts %v, there are %v, and bound are %v", sets.List(used), sets.List(accounts), sets.List(bound))
		}
	})
}

// TestControllersUser: the API server treats exactly the components that write as controllers in other processes as controllers.
func TestControllersUser(t *testing.T) {
	const prefix = "--controllers-user="
	each(t, func(t *testing.T, objects objects) {
		var want, got []string
		for _, w := range workloads(t, objects) {
			c := w.container(t)
			user := "system:serviceaccount:" + system + ":" + w.template.Spec.ServiceAccountName
			if slices.Contains(c.Args, "--components=controllers") || slices.Contains(c.Args, "--components=broker") {
				want = append(want, user)
			}
			for _, arg := range c.Args {
				if value, found := strings.CutPrefix(arg, prefix); found {
					got = append(got, strings.Split(value, ",")...)
				}
			}
		}
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("the API server takes %v for the controllers, want %v", got, want)
		}
	})
}

// TestTenants: tenants neither create Revisions nor write a status, and aggregated roles have no rules of their own,
// which the host would overwrite.
func TestTenants(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for _, role := range of[rbacv1.ClusterRole](t, objects, "ClusterRole") {
			if role.AggregationRule != nil && len(role.Rules) > 0 {
				t.Errorf("the rules of %s are overwritten by those it collects", role.Name)
			}
			if !strings.HasPrefix(role.Name, "knative-developer") && !strings.HasPrefix(role.Name, "knative-platform-admin") {
				continue
			}
			for _, rule := range role.Rules {
				writes := sets.New(rule.Verbs...).HasAny("create", "update", "patch", "delete", "deletecollection")
				for _, resource := range rule.Resources {
					if writes && (strings.HasSuffix(resource, "/status") || resource == "secrets") {
						t.Errorf("%s writes %s", role.Name, resource)
					}
					if resource == "revisions" && slices.Contains(rule.Verbs, "create") {
						t.Errorf("%s creates Revisions", role.Name)
					}
				}
			}
		}
	})
}

package manifests

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs/acmecerts"
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

// TestNoWildcards checks that no role has wildcards, or permits escalation.
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
					t.Errorf("%s may extend its own permissions: %+v", role, rule)
				}
				secrets := slices.Contains(rule.Resources, "secrets")
				if secrets && strings.HasPrefix(role, "ClusterRole") && !slices.Equal(rule.Verbs, []string{"get"}) {
					t.Errorf("%s has more permissions for Secrets than get by name: %+v", role, rule)
				}
				if slices.Contains(rule.Resources, "pods") && sets.New(rule.Verbs...).HasAny("delete", "deletecollection", "update", "patch") {
					t.Errorf("%s has more permissions for Pods than the code uses: %+v", role, rule)
				}
				if slices.Contains(rule.Resources, "pods/exec") || slices.Contains(rule.Resources, "nodes") {
					t.Errorf("%s: %+v", role, rule)
				}
			}
		}
	})
}

// TestCertificates checks that only replicas with controllers may write Certificates of cert-manager, or read them; they watch no other
// CustomResourceDefinition than the one of Certificates.
func TestCertificates(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		found := false
		for role, rules := range rules(t, objects) {
			for _, rule := range rules {
				if slices.Contains(rule.APIGroups, "cert-manager.io") {
					found = true
					want := rbacv1.PolicyRule{APIGroups: []string{"cert-manager.io"}, Resources: []string{"certificates"}, Verbs: []string{"get", "list", "watch", "create", "update", "delete"}}
					if role != "ClusterRole knative-controllers" || !equality.Semantic.DeepEqual(rule, want) {
						t.Errorf("%s: %+v", role, rule)
					}
				}
				if slices.Contains(rule.Resources, "customresourcedefinitions") && role == "ClusterRole knative-controllers" && !slices.Equal(rule.ResourceNames, []string{"certificates.cert-manager.io"}) {
					t.Errorf("%s: %+v", role, rule)
				}
			}
		}
		if !found {
			t.Error("no role permits Certificates of cert-manager")
		}
	})
}

// TestDuckRoles checks that a user who may use channels or addressable objects of all kinds may also use Channels and Brokers.
func TestDuckRoles(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for label, want := range map[string]map[string][]string{
			"duck.knative.dev/channelable": {
				"messaging.knative.dev/channels":        {"create", "get", "list", "watch", "update", "patch"},
				"messaging.knative.dev/channels/status": {"get", "list", "watch", "update", "patch"},
			},
			"duck.knative.dev/addressable": {
				"serving.knative.dev/services": {"get", "list", "watch"}, "serving.knative.dev/routes": {"get", "list", "watch"},
				"serving.knative.dev/domainmappings": {"get", "list", "watch"},
				"eventing.knative.dev/brokers":       {"get", "list", "watch"}, "messaging.knative.dev/channels": {"get", "list", "watch"},
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

// TestBindings checks that the subjects and roles of all bindings exist, and each workload's ServiceAccount is bound.
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
				t.Errorf("%s binds to %s %s, which does not exist", name, ref.Kind, ref.Name)
			}
			for _, subject := range subjects {
				if subject.Kind != rbacv1.ServiceAccountKind || subject.Namespace != system || !accounts.Has(subject.Name) {
					t.Errorf("%s binds %+v, which does not exist", name, subject)
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
			t.Errorf("Pods use the ServiceAccounts %v, existing are %v, and bound are %v", sets.List(used), sets.List(accounts), sets.List(bound))
		}
	})
}

// TestControllersUser checks that the API server treats exactly the components that write as controllers in other processes as controllers.
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
			t.Errorf("the API server treats %v as the controllers, want %v", got, want)
		}
	})
}

// TestTenants checks that tenants neither create Revisions nor write a status, and aggregated roles have no rules of their own,
// which the host would overwrite.
func TestTenants(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for _, role := range of[rbacv1.ClusterRole](t, objects, "ClusterRole") {
			if role.AggregationRule != nil && len(role.Rules) > 0 {
				t.Errorf("the rules of %s are overwritten by the aggregated ones", role.Name)
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

// TestDeadLetters checks that only the administrators of a namespace, and those to whom they bind the roles, read the data of past events: dead
// letters, and the events that a redrive or a replay delivers to a subscriber.
func TestDeadLetters(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		found := 0
		for _, role := range of[rbacv1.ClusterRole](t, objects, "ClusterRole") {
			for _, rule := range role.Rules {
				past := slices.DeleteFunc(slices.Clone(rule.Resources), func(r string) bool {
					return r != "deadletters" && r != "triggers/redrive" && r != "subscriptions/redrive" && r != "brokers/replay"
				})
				if len(past) == 0 {
					continue
				}
				found += len(past)
				for label := range role.Labels {
					if strings.Contains(label, "aggregate-to-") && label != "rbac.authorization.k8s.io/aggregate-to-admin" {
						t.Errorf("the label %s of %s makes others read past events", label, role.Name)
					}
				}
			}
		}
		if found != 4 {
			t.Errorf("%d rules permit to read dead letters, to deliver them again, and to replay events", found)
		}
	})
}

// TestReviewers checks that each workload that serves requests to Services may review their callers and watch Namespaces, and the role of callers
// permits only calls.
func TestReviewers(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		granted := map[string]sets.Set[string]{}
		roles := rules(t, objects)
		for _, b := range of[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding") {
			for _, subject := range b.Subjects {
				if granted[subject.Name] == nil {
					granted[subject.Name] = sets.New[string]()
				}
				granted[subject.Name].Insert(b.RoleRef.Name)
				for _, rule := range roles["ClusterRole "+b.RoleRef.Name] {
					if slices.Contains(rule.Resources, "namespaces") && sets.New(rule.Verbs...).HasAll("list", "watch") {
						granted[subject.Name].Insert("namespaces")
					}
				}
			}
		}
		for _, w := range workloads(t, objects) {
			account := w.template.Spec.ServiceAccountName
			alone := slices.ContainsFunc(w.container(t).Args, func(arg string) bool { return strings.HasPrefix(arg, "--components=") })
			serves := !alone || slices.Contains(w.container(t).Args, "--components=gateway") || slices.Contains(w.container(t).Args, "--components=controllers")
			if serves && !granted[account].HasAll("system:auth-delegator", "namespaces") {
				t.Errorf("%s is granted %v", account, sets.List(granted[account]))
			}
		}
		want := []rbacv1.PolicyRule{{APIGroups: []string{"serving.knative.dev"}, Resources: []string{"services", "routes"}, Verbs: []string{"invoke"}}}
		if got := roles["ClusterRole knative-serving-invoker"]; !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("callers may %+v", got)
		}
	})
}

// TestACMESecrets checks that replicas with the controllers may write the Secrets with ACME certificates, by name.
func TestACMESecrets(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		names := sets.New[string]()
		for _, rule := range rules(t, objects)["Role knative-host-certificates"] {
			if slices.Contains(rule.Resources, "secrets") && sets.New(rule.Verbs...).HasAll("get", "list", "watch", "update") {
				names.Insert(rule.ResourceNames...)
			}
		}
		if want := append(acmecerts.SecretNames(), "knative-host-ca"); !names.Equal(sets.New(want...)) {
			t.Errorf("the role names %v, want %v", sets.List(names), want)
		}
	})
}

// TestConfigMaps checks that no role permits more than get by name for the ConfigMaps of all namespaces: their content belongs to tenants.
func TestConfigMaps(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		for role, rules := range rules(t, objects) {
			for _, rule := range rules {
				if strings.HasPrefix(role, "ClusterRole") && slices.Contains(rule.Resources, "configmaps") && !slices.Equal(rule.Verbs, []string{"get"}) {
					t.Errorf("%s has more permissions for ConfigMaps than get by name: %+v", role, rule)
				}
			}
		}
	})
}

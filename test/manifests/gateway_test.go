package manifests

import (
	"slices"
	"testing"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// gatewayName is the name of the Deployment of gateways, and of its ServiceAccount.
const gatewayName = "knative-gateway"

// gatewayOf returns the workload of gateways that run alone, or false.
func gatewayOf(t *testing.T, objects objects) (workload, bool) {
	t.Helper()
	all := workloads(t, objects)
	i := slices.IndexFunc(all, func(w workload) bool { return w.name == gatewayName })
	if i < 0 {
		return workload{}, false
	}
	return all[i], true
}

// TestGateways checks that exactly one workload serves requests to Services, and only combined and single do so beside other components.
func TestGateways(t *testing.T) {
	alone := map[string]bool{"default": true, "combined": false, "single": false, "split": true}
	each(t, func(t *testing.T, objects objects) {
		var serving []string
		for _, w := range workloads(t, objects) {
			_, public := w.port(t, "gateway")
			_, secure := w.port(t, "gateway-tls")
			_, internal := w.port(t, "internal")
			_, drain := w.port(t, "drain")
			labeled := w.template.Labels["knative-apiserver/gateway"] == "true"
			if public != labeled || secure != labeled || internal != labeled || drain != labeled {
				t.Errorf("%s has the label of gateways: %t, ports: %t, %t, %t, %t", w.name, labeled, public, secure, internal, drain)
			}
			if labeled {
				serving = append(serving, w.name)
			}
		}
		_, separate := gatewayOf(t, objects)
		if want, found := alone[variantOf(t)]; !found || separate != want || len(serving) != 1 {
			t.Errorf("requests are served by %v; the gateway runs alone: %t, want %t", serving, separate, want)
		}
	})
}

// TestGatewayIdentity checks that the identity of gateways that run alone only reads, and reads no Secret. system:auth-delegator lets it review
// tokens and access, which stores nothing.
func TestGatewayIdentity(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		w, alone := gatewayOf(t, objects)
		if !alone {
			return
		}
		if w.template.Spec.ServiceAccountName != gatewayName {
			t.Errorf("the gateway has the identity %s", w.template.Spec.ServiceAccountName)
		}
		roles := rules(t, objects)
		check := func(binding string, ref rbacv1.RoleRef, subjects []rbacv1.Subject) {
			if !slices.ContainsFunc(subjects, func(s rbacv1.Subject) bool { return s.Name == gatewayName }) {
				return
			}
			// An installation that changes its layout applies or deletes the bindings of the gateway as a whole.
			if len(subjects) != 1 {
				t.Errorf("%s binds other subjects too: %+v", binding, subjects)
			}
			for _, rule := range roles[ref.Kind+" "+ref.Name] {
				if !sets.New("get", "list", "watch").HasAll(rule.Verbs...) || slices.Contains(rule.Resources, "secrets") {
					t.Errorf("%s permits %v of %v", binding, rule.Verbs, rule.Resources)
				}
			}
		}
		for _, b := range of[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding") {
			check(b.Name, b.RoleRef, b.Subjects)
		}
		for _, b := range of[rbacv1.RoleBinding](t, objects, "RoleBinding") {
			check(b.Name, b.RoleRef, b.Subjects)
		}
	})
}

// TestGatewayAvailability checks that gateways that run alone have their own NetworkPolicy, PodDisruptionBudget and HorizontalPodAutoscaler, which starts
// from the number of replicas in the manifest.
func TestGatewayAvailability(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		scalers := of[autoscalingv2.HorizontalPodAutoscaler](t, objects, "HorizontalPodAutoscaler")
		w, alone := gatewayOf(t, objects)
		if !alone {
			if len(scalers) > 0 {
				t.Errorf("HorizontalPodAutoscaler %s scales members of etcd", scalers[0].Name)
			}
			return
		}
		if len(scalers) != 1 || scalers[0].Spec.ScaleTargetRef.Kind != "Deployment" || scalers[0].Spec.ScaleTargetRef.Name != gatewayName {
			t.Fatalf("the HorizontalPodAutoscalers are %+v", scalers)
		}
		if s := scalers[0].Spec; s.MinReplicas == nil || *s.MinReplicas != w.replicas || *s.MinReplicas < 2 || s.MaxReplicas <= *s.MinReplicas {
			t.Errorf("the gateway has %d replicas, and is scaled from %v to %d", w.replicas, s.MinReplicas, s.MaxReplicas)
		}
		matches := func(selector map[string]string) bool {
			return labels.SelectorFromSet(selector).Matches(labels.Set(w.template.Labels))
		}
		if !slices.ContainsFunc(of[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy"), func(p *networkingv1.NetworkPolicy) bool {
			return p.Name == gatewayName && matches(p.Spec.PodSelector.MatchLabels)
		}) {
			t.Error("the gateway does not have its own NetworkPolicy")
		}
		if !slices.ContainsFunc(of[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget"), func(b *policyv1.PodDisruptionBudget) bool {
			return b.Name == gatewayName && matches(b.Spec.Selector.MatchLabels)
		}) {
			t.Error("the gateway does not have its own PodDisruptionBudget")
		}
	})
}

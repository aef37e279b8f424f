package manifests

import (
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/sets"
)

// memberPorts are the ports of the embedded etcd and event log.
var memberPorts = sets.New("etcd-client", "etcd-peer", "routes")

// TestServices checks that each Service refers to a port of Pods, and only the gateway's is reachable from outside.
func TestServices(t *testing.T) {
	each(t, func(t *testing.T, objects objects) {
		seen := sets.New[string]()
		for _, s := range of[corev1.Service](t, objects, "Service") {
			seen.Insert(s.Name)
			if outside := s.Spec.Type != corev1.ServiceTypeClusterIP && s.Spec.Type != ""; outside != (s.Name == "gateway") {
				t.Errorf("Service %s is of type %s", s.Name, s.Spec.Type)
			}
			for _, port := range s.Spec.Ports {
				served := false
				for _, w := range workloads(t, objects) {
					if !labels.SelectorFromSet(s.Spec.Selector).Matches(labels.Set(w.template.Labels)) {
						continue
					}
					_, found := w.port(t, port.TargetPort.StrVal)
					served = served || found
					// Replicas of all kinds share the Services for peer discovery, regardless of their ports.
					if !found && s.Spec.ClusterIP != corev1.ClusterIPNone {
						t.Errorf("Service %s selects %s, which has no port %s", s.Name, w.name, port.TargetPort.String())
					}
				}
				// With external etcd and NATS clusters, the ports of the embedded ones are not in use.
				if !served && (!memberPorts.Has(port.Name) || len(of[appsv1.StatefulSet](t, objects, "StatefulSet")) > 0) {
					t.Errorf("Service %s: no Pod serves port %s", s.Name, port.TargetPort.String())
				}
			}
			if s.Spec.ClusterIP == corev1.ClusterIPNone && !s.Spec.PublishNotReadyAddresses {
				t.Errorf("Service %s hides replicas from the peers that they need to become ready", s.Name)
			}
		}
		want := sets.New("knative-apiserver", "gateway", "gateway-internal", "broker-ingress", "knative-apiserver-peers")
		if !seen.Equal(want) {
			t.Errorf("Services are %v, want %v", sets.List(seen), sets.List(want))
		}
	})
}

// TestNetworkPolicies checks that each port of each Pod only accepts its intended clients.
func TestNetworkPolicies(t *testing.T) {
	const anywhere, cluster, ours = "anywhere", "the cluster", "Pods of the server"
	want := map[string]string{
		"https": anywhere, "gateway": anywhere, "gateway-tls": anywhere, "internal": cluster, "drain": anywhere, "broker": cluster, "broker-tls": cluster,
		"peer": ours, "etcd-client": ours, "etcd-peer": ours, "routes": ours,
	}
	each(t, func(t *testing.T, objects objects) {
		for _, w := range workloads(t, objects) {
			open := map[string]string{}
			for _, p := range of[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy") {
				if !labels.SelectorFromSet(p.Spec.PodSelector.MatchLabels).Matches(labels.Set(w.template.Labels)) {
					continue
				}
				for _, rule := range p.Spec.Ingress {
					from := anywhere
					for _, peer := range rule.From {
						switch {
						case peer.NamespaceSelector != nil && len(peer.NamespaceSelector.MatchLabels) == 0:
							from = cluster
						case peer.PodSelector != nil && labels.SelectorFromSet(peer.PodSelector.MatchLabels).Matches(labels.Set(w.template.Labels)):
							from = ours
						default:
							t.Errorf("NetworkPolicy %s: %+v", p.Name, peer)
						}
					}
					for _, port := range rule.Ports {
						open[port.Port.StrVal] = from
						for _, other := range workloads(t, objects) {
							if _, member := other.port(t, port.Port.StrVal); other.name != w.name && !member && memberPorts.Has(port.Port.StrVal) && selects(rule.From, other) {
								t.Errorf("NetworkPolicy %s allows %s to connect to port %s of %s", p.Name, other.name, port.Port.StrVal, w.name)
							}
						}
					}
				}
			}
			for _, port := range w.container(t).Ports {
				if open[port.Name] != want[port.Name] {
					t.Errorf("%s: port %s is open to %q, want %q", w.name, port.Name, open[port.Name], want[port.Name])
				}
			}
		}
	})
}

// selects reports whether a peer of a rule is a Pod of a workload.
func selects(peers []networkingv1.NetworkPolicyPeer, w workload) bool {
	return slices.ContainsFunc(peers, func(peer networkingv1.NetworkPolicyPeer) bool {
		return peer.PodSelector != nil && labels.SelectorFromSet(peer.PodSelector.MatchLabels).Matches(labels.Set(w.template.Labels))
	})
}

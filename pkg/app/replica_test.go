package app

import (
	"crypto/tls"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/egress"
)

// leases is a host cluster without Leases that stores those created.
func leases(t *testing.T) (host *rest.Config, created <-chan *coordinationv1.Lease) {
	leases := make(chan *coordinationv1.Lease, 1000) // one for each attempt: the handler must not block
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var answer any
		w.Header().Set("Content-Type", "application/json")
		switch {
		case r.URL.Query().Get("watch") != "":
			// Watches with initial events are not supported.
			w.WriteHeader(http.StatusUnprocessableEntity)
			answer = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonInvalid, Code: http.StatusUnprocessableEntity}
		case r.Method == http.MethodPost:
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
			if err != nil {
				t.Error(err)
			}
			lease, _ := obj.(*coordinationv1.Lease)
			lease.TypeMeta = metav1.TypeMeta{Kind: "Lease", APIVersion: "coordination.k8s.io/v1"}
			leases <- lease
			answer = lease
		case r.URL.Path == "/apis/coordination.k8s.io/v1/namespaces/system/leases":
			answer = &coordinationv1.LeaseList{TypeMeta: metav1.TypeMeta{Kind: "LeaseList", APIVersion: "coordination.k8s.io/v1"},
				ListMeta: metav1.ListMeta{ResourceVersion: "1"}}
		default:
			w.WriteHeader(http.StatusNotFound)
			answer = &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
				Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL}, leases
}

// TestLeaseOwner checks that the Pod owns the Lease of a replica, so that both are deleted together.
func TestLeaseOwner(t *testing.T) {
	host, created := leases(t)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	config := ReplicaConfig{PodName: "gateway-7d9f-x2v", PodUID: "uid-1", PodIP: "192.0.2.7", Listener: listener, Group: "gateway"}
	election, err := newElection(host, "system", config)
	if err != nil {
		t.Fatal(err)
	}
	replica, err := newReplica(host, "system", config, election, &tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	go replica.membership.Run(t.Context())
	if err := replica.membership.Join(t.Context()); err != nil {
		t.Fatal(err)
	}
	owners := (<-created).OwnerReferences
	if len(owners) != 1 || owners[0].Kind != "Pod" || owners[0].Name != "gateway-7d9f-x2v" || owners[0].UID != "uid-1" || ptr.Deref(owners[0].BlockOwnerDeletion, false) {
		t.Errorf("the Lease is owned by %+v", owners)
	}

	// Events are not sent to replicas by their addresses.
	guard, err := newGuard(metrics.NewKubeRegistry(), egress.Options{Interfaces: noInterfaces}, &rest.Config{Host: "https://192.0.2.1:6443"}, replica)
	if err != nil {
		t.Fatal(err)
	}
	for address, want := range map[string]bool{"192.0.2.7": false, "192.0.2.1": false, "192.0.2.8": true} {
		if got := guard.Allows(netip.MustParseAddr(address)); got != want {
			t.Errorf("%s is allowed: %t", address, got)
		}
	}
}

// TestLeaderMetric checks that /metrics has whether this replica leads, with the name that the alert KnativeNoLeader reads.
func TestLeaderMetric(t *testing.T) {
	host, _ := leases(t)
	if _, err := newElection(host, "system", ReplicaConfig{PodName: "server-0", PodIP: "127.0.0.1", Listener: listenLocal(t), Group: "all"}); err != nil {
		t.Fatal(err)
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if family.GetName() != "leader_election_master_status" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if label := metric.GetLabel()[0]; label.GetName() == "name" && label.GetValue() == "knative-apiserver-leader" {
				return
			}
		}
	}
	t.Error("there is no leader_election_master_status of knative-apiserver-leader")
}

func noInterfaces() ([]netip.Addr, error) { return nil, nil }

// TestOwnAddresses checks that the address of the API server is an own address in each notation.
func TestOwnAddresses(t *testing.T) {
	for host, want := range map[string]string{
		"https://192.0.2.1:6443": "192.0.2.1", "https://[2001:db8::1]:6443/prefix": "2001:db8::1", "192.0.2.1:6443": "192.0.2.1", "192.0.2.1": "192.0.2.1",
		"https://kubernetes.default.svc": "kubernetes.default.svc",
	} {
		if got := hostName(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

// A replica knows its peers when membership is ready, is a member once it serves peers, and stops whether it has retired or not.
func TestReplicaModules(t *testing.T) {
	for name, retires := range map[string]bool{"retired": true, "not retired": false} {
		t.Run(name, func(t *testing.T) {
			host, created := leases(t)
			config := ReplicaConfig{PodName: "server-0", PodIP: "127.0.0.1", Listener: listenLocal(t), Group: "all"}
			election, err := newElection(host, "system", config)
			if err != nil {
				t.Fatal(err)
			}
			r, err := newReplica(host, "system", config, election, &tls.Config{
				MinVersion:     tls.VersionTLS13,
				GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return nil, certs.ErrNotIssued },
			})
			if err != nil {
				t.Fatal(err)
			}
			fail := func(err error) { t.Errorf("a module failed: %v", err) }
			membership, peers := newFollowing(r), &joined{replica: r}
			for _, m := range []lifecycle.Module{membership, peers} {
				if err := m.Start(t.Context(), fail); err != nil {
					t.Fatalf("%s does not start: %v", m.Name(), err)
				}
				if err := m.Ready(t.Context()); err != nil {
					t.Errorf("%s is not ready: %v", m.Name(), err)
				}
			}
			if lease := <-created; lease.Spec.HolderIdentity == nil {
				t.Errorf("the Lease is %+v", lease)
			}
			if retires {
				membership.Retire()
			}
			for _, m := range []lifecycle.Module{peers, membership} {
				if err := m.Stop(t.Context()); err != nil {
					t.Errorf("%s does not stop: %v", m.Name(), err)
				}
			}
			if connection, err := net.Dial("tcp", config.Listener.Addr().String()); err == nil {
				connection.Close()
				t.Error("the port for peers is open after the stop")
			}
		})
	}
}

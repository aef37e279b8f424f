package membership

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"
)

const podLabel = "example.com/gateway"

// gatewayPod is a Pod with an address.
func gatewayPod(name, label, address string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: name, UID: "uid-1", Labels: map[string]string{podLabel: label}},
		Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: address}}},
	}
}

// ask sends a request to a Registrar and returns the code.
func ask(s *Registrar, method, path, address, uid string) int {
	target := url.URL{Path: path, RawQuery: url.Values{addressParameter: {address}, uidParameter: {uid}}.Encode()}
	answer := httptest.NewRecorder()
	s.ServeHTTP(answer, httptest.NewRequest(method, target.String(), http.NoBody))
	return answer.Code
}

// A Registrar writes the Leases of Pods with the label at their own address only.
func TestRegistrar(t *testing.T) {
	client := fake.NewClientset(gatewayPod("g-1", "true", "192.0.2.1"), gatewayPod("server-0", "", "192.0.2.2"), gatewayPod("server-1", "true", "192.0.2.3"))
	leases := client.CoordinationV1().Leases("system")
	other := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: leasePrefix + "server-1", Labels: map[string]string{installationLabel: "controllers"}}}
	if _, err := leases.Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &Registrar{Client: client, Namespace: "system", PodLabel: podLabel, Installation: "gateway", Clock: clock.RealClock{}}
	for _, test := range []struct {
		name, method, path, address, uid string
		want                             int
	}{
		{"a gateway", http.MethodPut, "/g-1", "192.0.2.1:8444", "uid-1", http.StatusNoContent},
		{"a renewal", http.MethodPut, "/g-1", "192.0.2.1:8444", "uid-1", http.StatusNoContent},
		{"the address of another Pod", http.MethodPut, "/g-1", "192.0.2.2:8444", "uid-1", http.StatusForbidden},
		{"no address", http.MethodPut, "/g-1", "elsewhere:8444", "uid-1", http.StatusForbidden},
		{"an earlier Pod of the name", http.MethodPut, "/g-1", "192.0.2.1:8444", "uid-0", http.StatusForbidden},
		{"no UID", http.MethodPut, "/g-1", "192.0.2.1:8444", "", http.StatusForbidden},
		{"no name", http.MethodPut, "/", "192.0.2.1:8444", "uid-1", http.StatusForbidden},
		{"a Pod that does not exist", http.MethodPut, "/g-2", "192.0.2.1:8444", "uid-1", http.StatusForbidden},
		{"another Pod", http.MethodPut, "/server-0", "192.0.2.2:8444", "uid-1", http.StatusForbidden},
		{"the Lease of another group", http.MethodPut, "/server-1", "192.0.2.3:8444", "uid-1", http.StatusForbidden},
		{"deleting the Lease of another group", http.MethodDelete, "/server-1", "192.0.2.3:8444", "uid-1", http.StatusForbidden},
		{"another method", http.MethodPost, "/g-1", "192.0.2.1:8444", "uid-1", http.StatusMethodNotAllowed},
	} {
		if got := ask(s, test.method, test.path, test.address, test.uid); got != test.want {
			t.Errorf("%s: code %d, want %d", test.name, got, test.want)
		}
	}
	lease, err := leases.Get(t.Context(), leasePrefix+"g-1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if lease.Labels[installationLabel] != "gateway" || len(lease.OwnerReferences) != 1 || *lease.Spec.HolderIdentity != "192.0.2.1:8444" {
		t.Errorf("the Lease is %+v", lease)
	}
	for range 2 {
		if got := ask(s, http.MethodDelete, "/g-1", "192.0.2.1:8444", "uid-1"); got != http.StatusNoContent {
			t.Errorf("release: code %d", got)
		}
	}
	if _, err := leases.Get(t.Context(), leasePrefix+"g-1", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("after the release: %v", err)
	}
	all, err := leases.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(all.Items) != 1 {
		t.Errorf("got %d Leases, %v", len(all.Items), err)
	}
}

// A replica that only reads is a member through any replica with a Registrar, and follows only installations that it selects.
func TestRegistration(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.join("a")
		defer a.kill()
		if _, err := c.client.CoreV1().Pods("system").Create(t.Context(), gatewayPod("g", "true", "192.0.2.1"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		registrar := &Registrar{Client: c.client, Namespace: "system", PodLabel: podLabel, Clock: clock.RealClock{}}
		var failing error
		self := Member{Name: "g", Address: "192.0.2.1:8444"}
		registration := &Registration{
			Self: self, PodUID: "uid-1",
			Send: func(_ context.Context, method, path string, query url.Values) error {
				if failing != nil {
					return failing
				}
				if code := ask(registrar, method, strings.TrimPrefix(path, "/"+RegistrarElement), query.Get(addressParameter), query.Get(uidParameter)); code != http.StatusNoContent {
					return errors.New(http.StatusText(code))
				}
				return nil
			},
		}
		g := New(Options{Client: listing{c.reach("g").CoordinationV1()}, Namespace: "system", Self: self, PodUID: "uid-1", Announcer: registration, Clock: clock.RealClock{}})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); g.Run(ctx) }()
		defer func() { stop(); <-done }()
		if err := g.Join(ctx); err != nil {
			t.Fatal(err)
		}
		c.expect("after it joined", a, "a g")
		after(time.Minute)
		c.expect("a minute later", a, "a g")
		if err := g.Release(ctx); err != nil {
			t.Fatal(err)
		}
		c.expect("after it left", a, "a")
		after(time.Minute)
		c.expect("a minute after it left", a, "a")
		failing = errors.New("no replica answers")
		if err := registration.Release(ctx); !errors.Is(err, failing) {
			t.Errorf("without another replica: %v", err)
		}
	})
}

// Includes selects members by the names of their installations.
func TestIncludes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		for name, installation := range map[string]string{"a": "apiserver.controllers", "b": "broker", "c": "controllers", "d": ""} {
			l := &ownLease{client: c.client.CoordinationV1(), clock: clock.RealClock{}, namespace: "system", installation: installation, holder: Member{Name: name, Address: name + ":8444"}}
			if err := l.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		m := New(Options{
			Client: listing{c.reach("g").CoordinationV1()}, Namespace: "system", Self: Member{Name: "g"}, Clock: clock.RealClock{},
			Includes: func(installation string) bool { return strings.Contains(installation, "controllers") },
		})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		defer func() { stop(); <-done }()
		if err := m.Synced(ctx); err != nil {
			t.Fatal(err)
		}
		c.expect("a replica that only follows", &replica{Membership: m}, "a c")
	})
}

// A view has the members of the installations that it selects, this replica included, and follows a replica that changes its installation.
func TestViewOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		write := func(name, installation string) {
			t.Helper()
			l := &ownLease{client: c.client.CoordinationV1(), clock: clock.RealClock{}, namespace: "system", installation: installation, holder: Member{Name: name, Address: name + ":8444"}}
			if err := l.Renew(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		write("a", "broker.gateway")
		write("b", "gateway")
		m := New(Options{
			Client: listing{c.reach("s").CoordinationV1()}, Namespace: "system", Installation: "broker", Self: Member{Name: "s", Address: "s:8444"},
			Clock: clock.RealClock{}, Includes: func(string) bool { return true },
		})
		with := func(component string) *View {
			return m.ViewOf(func(installation string) bool { return slices.Contains(strings.Split(installation, "."), component) })
		}
		brokers, gateways := with("broker"), with("gateway")
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); m.Run(ctx) }()
		defer func() { stop(); <-done }()
		if err := m.Join(ctx); err != nil {
			t.Fatal(err)
		}
		expect := func(when, wantAll, wantBrokers, wantGateways string) {
			t.Helper()
			c.expect(when, &replica{Membership: m}, wantAll)
			for _, test := range []struct {
				view *View
				want string
			}{{brokers, wantBrokers}, {gateways, wantGateways}} {
				var names []string
				for _, member := range test.view.Current().Members() {
					names = append(names, member.Name)
				}
				if have := strings.Join(names, " "); have != test.want {
					t.Errorf("%s: a view has %q, want %q", when, have, test.want)
				}
			}
		}
		expect("at first", "a b s", "a s", "a b")
		after(time.Millisecond)
		write("a", "broker")
		expect("after a has changed", "a b s", "a s", "b")
		if err := m.Release(ctx); err != nil {
			t.Fatal(err)
		}
		expect("after the release", "a b", "a", "b")
	})
}

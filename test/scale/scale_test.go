// Package scale runs the parts of the server whose work grows with the fleet at the size of a large one, with the real code, in virtual time
// where time matters: membership, ownership, the state of a gateway, and scaling. docs/scale.md explains the figures.
//
// The environment variable SCALE is the percentage of the fleet of docs/scale.md that is simulated; default is 1.
package scale

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	k8sruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/gateway"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
)

// The fleet of docs/scale.md.
const fullGateways, fullServices, fullBrokers = 100, 100_000, 1000

// fleet is the simulated part of the fleet.
type fleet struct{ gateways, services, brokers int }

func simulated(t *testing.T) fleet {
	t.Helper()
	percent := 1
	if value := os.Getenv("SCALE"); value != "" {
		var err error
		if percent, err = strconv.Atoi(value); err != nil || percent < 1 || percent > 100 {
			t.Fatalf("SCALE must be a percentage from 1 to 100, not %q", value)
		}
	}
	of := func(full, least int) int { return max(full*percent/100, least) }
	return fleet{of(fullGateways, 10), of(fullServices, 1000), of(fullBrokers, 100)}
}

// members returns the members of a fleet.
func (f fleet) members() []membership.Member {
	all := make([]membership.Member, f.gateways)
	for i := range all {
		all[i] = membership.Member{Name: fmt.Sprintf("knative-gateway-%d", i), Address: fmt.Sprintf("10.0.%d.%d:8444", i/256, i%256)}
	}
	return all
}

// service returns the key of a Service's Revision and Route. Namespaces have 100 Services.
func service(i int) routing.Key {
	return routing.Key{Namespace: fmt.Sprintf("team-%d", i/100), Name: fmt.Sprintf("service-%d", i)}
}

func revision(i int) *routing.Revision {
	key := service(i)
	return &routing.Revision{
		Key: key, UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i)), Service: key.Name, Configuration: key.Name, Protocol: routing.HTTP1,
		Timeout: 300 * time.Second, Reachable: true, Started: true,
	}
}

// busy returns the processor time of this process.
func busy(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// heap returns the bytes of live objects.
func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func quantile(all []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[int(q*float64(len(sorted)-1))]
}

// listing is a client whose watches do not begin with the existing objects, like watches of the fake server.
type listing struct {
	coordinationclient.LeasesGetter
}

// IsWatchListSemanticsUnSupported informs reflectors of that.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }

// TestLeases counts the requests of a membership: each replica renews a Lease every two seconds, and watches all of them.
func TestLeases(t *testing.T) {
	f := simulated(t)
	synctest.Test(t, func(t *testing.T) {
		server := fake.NewClientset()
		writes := 0
		server.PrependReactor("update", "leases", func(clienttesting.Action) (bool, k8sruntime.Object, error) {
			writes++
			return false, nil, nil
		})
		ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
		var running []*membership.Membership
		ended := make(chan struct{})
		for _, self := range f.members() {
			m := membership.New(membership.Options{
				Client: listing{server.CoordinationV1()}, Namespace: "knative-system", Self: self, PodUID: "uid", Clock: clock.RealClock{},
			})
			go func() {
				m.Run(ctx)
				ended <- struct{}{}
			}()
			if err := m.Join(ctx); err != nil {
				t.Fatal(err)
			}
			running = append(running, m)
			// Replicas start one after the other.
			<-time.After(2 * time.Second / time.Duration(f.gateways))
		}
		synctest.Wait()
		const seconds = 20
		before, began := busy(t), writes
		<-time.After(seconds * time.Second)
		synctest.Wait()
		perSecond := float64(writes-began) / seconds
		t.Logf("%d replicas: %.1f writes of Leases a second, %.0f watch events a second in all; %v of a processor for each second, server included",
			f.gateways, perSecond, perSecond*float64(f.gateways), ((busy(t) - before) / seconds).Round(10*time.Microsecond))
		if want := float64(f.gateways) / 2; perSecond > 1.1*want {
			t.Errorf("%.1f writes a second, want at most %.1f", perSecond, 1.1*want)
		}
		for _, m := range running {
			if n := len(m.View().Current().Members()); n != f.gateways {
				t.Fatalf("a replica sees %d of %d members", n, f.gateways)
			}
		}
		stop()
		for range running {
			<-ended
		}
	})
}

// TestOwners covers the owners of all Revisions with containerConcurrency and all Brokers: shares are even, and a replica that stops moves only
// its own keys.
func TestOwners(t *testing.T) {
	f := simulated(t)
	members := f.members()
	all := ownership.Among(membership.NewSet("", members...), func(key routing.Key) ownership.Place { return ownership.Place{Name: key.String()} })
	fewer := ownership.Among(membership.NewSet("", members[1:]...), func(key routing.Key) ownership.Place { return ownership.Place{Name: key.String()} })
	for kind, n := range map[string]int{"Revisions": f.services, "Brokers": f.brokers} {
		shares, moved := map[string]int{}, 0
		began := time.Now()
		for i := range n {
			owner, _ := all.Owner(service(i))
			shares[owner.Name]++
		}
		took := time.Since(began) / time.Duration(n)
		for i := range n {
			before, _ := all.Owner(service(i))
			after, _ := fewer.Owner(service(i))
			switch {
			case before == after:
			case before.Name != members[0].Name:
				t.Fatalf("%s moves although its owner stays", service(i))
			default:
				moved++
			}
		}
		most := 0
		for _, share := range shares {
			most = max(most, share)
		}
		mean := float64(n) / float64(f.gateways)
		t.Logf("%d %s, %d replicas: %.0f for each, at most %d; %v to compute an owner; %d move when a replica stops", n, kind, f.gateways, mean, most, took, moved)
		if moved != shares[members[0].Name] {
			t.Errorf("%d keys moved, want the %d of the replica that stopped", moved, shares[members[0].Name])
		}
		if float64(most) > mean+6*max(1, math.Sqrt(mean)) {
			t.Errorf("a replica owns %d %s, want about %.0f", most, kind, mean)
		}
	}
}

// TestGateway covers the state of a gateway with all Services: its memory, and the time of a change.
func TestGateway(t *testing.T) {
	f := simulated(t)
	members := f.members()
	view := membership.NewView(membership.NewSet(members[0].Name, members...))
	empty := heap()
	g := gateway.New(gateway.Options{Members: view})
	set := func(i int) time.Duration {
		key := service(i)
		g.SetRevision(revision(i))
		name := key.Name + "." + key.Namespace
		hosts := make([]routing.Host, 0, 3)
		for _, suffix := range []string{"", ".svc", ".svc.cluster.local"} {
			hosts = append(hosts, routing.Host{Name: name + suffix, Targets: []routing.Target{{Revision: key, Percent: 100}}, ClusterLocal: true})
		}
		hosts = append(hosts, routing.Host{Name: name + ".example.com", Targets: []routing.Target{{Revision: key, Percent: 100}}})
		began := time.Now()
		g.SetRoute(&routing.Route{Key: key, Hosts: hosts})
		return time.Since(began)
	}
	for i := range f.services {
		set(i)
		g.SetInstances(service(i), []workload.Instance{{Name: service(i).Name + "-0", Address: "10.1.2.3:8080"}})
	}
	perService := (heap() - empty) / uint64(f.services)
	changes := make([]time.Duration, 0, 1000)
	for i := range cap(changes) {
		changes = append(changes, set(i%f.services))
	}
	began := time.Now()
	view.Set(membership.NewSet(members[0].Name, members[1:]...))
	moved := time.Since(began)
	t.Logf("%d Services: %d bytes each in a gateway; a Route changes in %v, p99 %v; a change of the membership takes %v",
		f.services, perService, quantile(changes, 0.5), quantile(changes, 0.99), moved)
	if perService > 10<<10 {
		t.Errorf("a Service takes %d bytes of a gateway", perService)
	}
	runtime.KeepAlive(g)
}

// between sends the requests of replicas to the handlers of others, by address.
type between map[string]http.Handler

// RoundTrip implements http.RoundTripper.
func (b between) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	request := r.Clone(r.Context())
	if request.Body == nil {
		request.Body = http.NoBody
	}
	b[r.URL.Host].ServeHTTP(w, request)
	return w.Result(), nil
}

// TestRouteChange covers a change of a Route: each gateway applies it, and the leader asks each of them before the Route is Ready.
func TestRouteChange(t *testing.T) {
	f := simulated(t)
	members, network := f.members(), between{}
	gateways := make([]*gateway.Gateway, len(members))
	for i, m := range members {
		view := membership.NewView(membership.NewSet(m.Name, members...))
		gateways[i] = gateway.New(gateway.Options{Members: view, Forward: network})
		network[m.Address] = http.StripPrefix("/gateway", gateways[i].PeerHandler())
	}
	const changes = 100
	before, asked := busy(t), time.Duration(0)
	for i := range changes {
		key := service(i)
		route := &routing.Route{Key: key, Hosts: []routing.Host{{Name: key.Name + ".example.com", Targets: []routing.Target{{Revision: key, Percent: 100}}}}}
		for _, g := range gateways {
			g.SetRevision(revision(i))
			g.SetRoute(route)
		}
		begun := busy(t)
		served := make(chan struct{}, 1)
		for !gateways[0].ServedByAll(key, func() { served <- struct{}{} }) {
			<-served
		}
		asked += busy(t) - begun
	}
	t.Logf("%d gateways: a change of a Route takes %v of a processor at all gateways together, and %v to ask each of them without the network",
		f.gateways, ((busy(t) - before - asked) / changes).Round(time.Microsecond), (asked / changes).Round(time.Microsecond))
}

// TestScaling covers the leader of the autoscaler while all Services have requests at all gateways: it receives the reports of the gateways, and
// decides.
func TestScaling(t *testing.T) {
	f := simulated(t)
	members := f.members()
	// A million requests a second: each gateway has a request for a tenth of the Services in a second.
	const share = 10
	report := autoscaler.Report{Member: members[1].Name}
	for i := 0; i < f.services; i += share {
		r := revision(i)
		report.Usages = append(report.Usages, autoscaler.Usage{Key: r.Key, UID: r.UID, Concurrency: 0.1234, RequestsPerSecond: 1})
	}
	first, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		defaults := settings.Default("example.com")
		scaled := 0
		l := autoscaler.New(autoscaler.Options{
			Settings: func() *settings.Settings { return &defaults },
			Scale:    func(context.Context, routing.Key, int32) error { scaled++; return nil },
			Sample: func(routing.Key, time.Time) (autoscaler.Sample, bool) {
				return autoscaler.Sample{Concurrency: 0.1}, true
			},
			Clock: clock.RealClock{}, Logger: logr.Discard(), Leading: func() bool { return true },
			Members: membership.NewView(membership.NewSet(members[0].Name, members...)),
			Report:  func(time.Time) []autoscaler.Usage { return nil },
			Send:    func(context.Context, *autoscaler.Report) error { return errors.New("this replica leads") }, ActivateNow: func(routing.Key) {},
		})
		for i := range f.services {
			r := revision(i)
			l.SetRevision(r)
			l.Observe(r.Key, workload.State{UID: r.UID, Desired: 1, Ready: 1})
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			l.Run(ctx)
			close(ended)
		}()
		synctest.Wait()
		const seconds = 4
		var receiving, deciding time.Duration
		for range seconds {
			for _, m := range members[1:] {
				body := bytes.Replace(first, []byte(members[1].Name), []byte(m.Name), 1)
				before := busy(t)
				w := httptest.NewRecorder()
				request := httptest.NewRequestWithContext(ctx, http.MethodPost, autoscaler.UsagePath, bytes.NewReader(body))
				l.UsageHandler().ServeHTTP(w, request)
				if w.Code != http.StatusNoContent {
					t.Fatalf("code %d", w.Code)
				}
				receiving += busy(t) - before
			}
			before := busy(t)
			<-time.After(time.Second)
			synctest.Wait()
			deciding += busy(t) - before
		}
		stop()
		<-ended
		entries := time.Duration(seconds * (f.gateways - 1) * len(report.Usages))
		t.Logf("%d gateways, %d Services: reports of %.1f MB; for each second the leader takes %v to receive all reports, %v for an entry, and %v to decide, %v for a Revision",
			f.gateways, f.services, float64(len(first))/1e6, (receiving / seconds).Round(time.Millisecond), receiving/entries, (deciding / seconds).Round(time.Millisecond), deciding/time.Duration(seconds*f.services))
	})
}

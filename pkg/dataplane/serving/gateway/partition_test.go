package gateway

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/linger"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/pool"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
)

// partitions is the network of replicas in virtual time: between them, and to the host's API server.
type partitions struct {
	host *fake.Clientset
	app  countedApp

	mu sync.Mutex
	// noHost and noPeers have the replicas without a connection to the host and to other replicas. All of them reach the backend.
	noHost, noPeers map[string]bool
	replicas        map[string]*partitioned
}

// partitioned is one of the replicas.
type partitioned struct {
	*Gateway
	name       string
	membership *membership.Membership
	metrics    metrics.KubeRegistry
	kill       context.CancelFunc
}

// countedApp is a backend that counts its requests and does not notice canceled ones.
type countedApp struct {
	mu        sync.Mutex
	now, most int
	// last is the time at which a replica last sent a request.
	last map[string]time.Time
}

func (a *countedApp) begin(replica string) (end func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.now++
	a.most = max(a.most, a.now)
	a.last[replica] = time.Now()
	return func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.now--
	}
}

func (a *countedApp) lastBy(r *partitioned) time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.last[r.name]
}

// leasesOf is a client whose watches do not begin with the existing objects.
type leasesOf struct {
	coordinationclient.LeasesGetter
}

// IsWatchListSemanticsUnSupported informs reflectors of that.
func (leasesOf) IsWatchListSemanticsUnSupported() bool { return true }

func (n *partitions) cut(set func(noHost, noPeers map[string]bool)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.noHost, n.noPeers = map[string]bool{}, map[string]bool{}
	set(n.noHost, n.noPeers)
}

// link sends the requests of one replica to the others.
type link struct {
	*partitions
	from string
}

// RoundTrip implements http.RoundTripper.
func (l link) RoundTrip(r *http.Request) (*http.Response, error) {
	to := strings.TrimSuffix(r.URL.Host, ":8444")
	l.mu.Lock()
	cut, peer := l.noPeers[l.from] || l.noPeers[to], l.replicas[to]
	l.mu.Unlock()
	if cut || peer == nil {
		select {
		case <-time.After(time.Second):
		case <-r.Context().Done():
		}
		return nil, errors.New("no route to host")
	}
	w := httptest.NewRecorder()
	http.StripPrefix(peerPath, peer.PeerHandler()).ServeHTTP(w, r)
	return w.Result(), nil
}

// startPartitions starts the owner of the tests' Revision and another replica.
func startPartitions(t *testing.T) (n *partitions, owner, other *partitioned) {
	t.Helper()
	n = &partitions{
		host: fake.NewClientset(), app: countedApp{last: map[string]time.Time{}},
		noHost: map[string]bool{}, noPeers: map[string]bool{}, replicas: map[string]*partitioned{},
	}
	ownerName, otherName := ownerAndOther("a", "b")
	return n, n.start(t, ownerName), n.start(t, otherName)
}

func (n *partitions) start(t *testing.T, name string) *partitioned {
	t.Helper()
	client := &fake.Clientset{}
	client.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		n.mu.Lock()
		defer n.mu.Unlock()
		return n.noHost[name], nil, errors.New("the server is down")
	})
	client.AddReactor("*", "*", clienttesting.ObjectReaction(n.host.Tracker()))
	client.AddWatchReactor("*", n.host.WatchReactionChain[0].React)
	standing := ownership.NewStanding()
	m := membership.New(membership.Options{
		Client: leasesOf{client.CoordinationV1()}, Namespace: "system", Self: membership.Member{Name: name, Address: name + ":8444"},
		PodUID: "uid", Renewed: standing.Confirm, Clock: clock.RealClock{},
	})
	registry := metrics.NewKubeRegistry()
	g := New(Options{Members: m.View(), Forward: link{n, name}, Standing: standing, UpToDate: m.UpToDate, Register: registry.MustRegister})
	g.SetRevision(revision(2))
	g.SetInstances(key("r"), ready("i"))
	ctx, kill := context.WithCancel(klog.NewContext(t.Context(), logr.Discard()))
	go m.Run(ctx)
	go g.KeepStanding(ctx)
	r := &partitioned{Gateway: g, name: name, membership: m, metrics: registry, kill: kill}
	n.mu.Lock()
	n.replicas[name] = r
	n.mu.Unlock()
	if err := m.Join(ctx); err != nil {
		t.Fatal(err)
	}
	return r
}

// counting is a forwarder to the backend of partitions. A request takes as long as hold, and after an interruption almost as long as the
// gateway keeps its place: of two timers for the same moment, either may be first.
type counting struct {
	app         *countedApp
	replica     string
	hold        time.Duration
	exchange    *exchange
	interrupted chan struct{}
}

func (*counting) Memory() int                    { return 0 }
func (f *counting) Begin(x *exchange)            { f.exchange = x }
func (f *counting) Interrupt(*serving.Rejection) { close(f.interrupted) }
func (*counting) Failed(err error) serving.Result {
	return serving.Result{Outcome: serving.Canceled, Err: err}
}
func (*counting) Reject(*serving.Rejection) error { return nil }
func (*counting) Wait() (context.Context, context.CancelFunc) {
	return context.WithCancel(context.Background())
}
func (*counting) ForwardToOwner(*membership.Member) serving.Result {
	return serving.Result{Outcome: serving.Rejected, Rejection: noOwner}
}

func (f *counting) Forward(*pool.Backend) serving.Result {
	end := f.app.begin(f.replica)
	select {
	case <-time.After(f.hold):
		end()
		return serving.Result{Status: http.StatusOK}
	case <-f.interrupted:
		time.AfterFunc(linger.Bound-time.Millisecond, end)
		f.exchange.Abandon().Expire()
		return serving.Result{Outcome: serving.Canceled}
	}
}

// send sends a request to the gateway.
func (n *partitions) send(r *partitioned, hold time.Duration) {
	p := r.pools.Retain(key("r"))
	defer r.pools.Release(p)
	in := httptest.NewRequest(http.MethodGet, "/", nil)
	r.chain.serve(inbound{request: in, revision: p, path: []string{"client"}}, &counting{app: &n.app, replica: r.name, hold: hold, interrupted: make(chan struct{})})
}

// TestPartitions checks that a backend never has more requests than containerConcurrency, regardless of the failed connections of the
// owner, and covers the time for which each failure stops the requests (serving 8-7). The time is virtual.
func TestPartitions(t *testing.T) {
	// lease is the time until the other replica considers the owner gone, with the interval between its checks. lapse is the time until
	// the owner stops, with one attempt to confirm.
	const lease, lapse, margin = 7 * time.Second, ownership.Validity, 2 * time.Second
	for name, test := range map[string]struct {
		fail func(n *partitions, owner, other *partitioned)
		// stops is the time at which the owner has stopped sending requests, 0 if it does not. other is the time at which the other replica
		// has begun, 0 if it does not.
		stops, begins time.Duration
		interruptions float64
	}{
		"isolated": {
			fail: func(n *partitions, owner, _ *partitioned) {
				n.cut(func(noHost, noPeers map[string]bool) { noHost[owner.name], noPeers[owner.name] = true, true })
			},
			stops: lapse, begins: lease + stopTime + margin, interruptions: 1,
		},
		"no host": {
			fail: func(n *partitions, owner, _ *partitioned) {
				n.cut(func(noHost, _ map[string]bool) { noHost[owner.name] = true })
			},
			// The owner continues until the other replica no longer confirms it.
			stops: lease + lapse, begins: lease + lapse + linger.Bound + margin, interruptions: 1,
		},
		"host down": {
			fail: func(n *partitions, owner, other *partitioned) {
				n.cut(func(noHost, _ map[string]bool) { noHost[owner.name], noHost[other.name] = true, true })
			},
		},
		"no peers": {
			fail: func(n *partitions, owner, _ *partitioned) {
				n.cut(func(_, noPeers map[string]bool) { noPeers[owner.name] = true })
			},
		},
		"killed": {
			fail: func(n *partitions, owner, _ *partitioned) {
				owner.kill()
				n.mu.Lock()
				defer n.mu.Unlock()
				delete(n.replicas, owner.name)
			},
			stops: lapse, begins: lease + stopTime + margin, interruptions: 1,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, owner, other := startPartitions(t)
				ctx, cancel := context.WithCancel(t.Context())
				var clients sync.WaitGroup
				client := func(r *partitioned, hold time.Duration) {
					clients.Go(func() {
						for ctx.Err() == nil {
							n.send(r, hold) //nolint:contextcheck // the chain takes it from the forwarder
							<-time.After(10 * time.Millisecond)
						}
					})
				}
				// This is longer than any failure.
				client(owner, 10*time.Minute)
				for _, r := range []*partitioned{owner, other} {
					client(r, 40*time.Millisecond)
					client(r, 50*time.Millisecond)
				}
				<-time.After(30 * time.Second)
				last := n.app.lastBy
				if time.Since(last(owner)) > time.Second || time.Since(last(other)) < 20*time.Second {
					t.Fatal("the owner does not send the requests")
				}
				failed := time.Now()
				test.fail(n, owner, other)
				<-time.After(max(test.stops, time.Second))
				stopped := time.Now()
				<-time.After(max(test.begins, time.Minute) - time.Since(failed))
				if test.stops > 0 && last(owner).After(stopped) || test.stops == 0 && time.Since(last(owner)) > time.Second {
					t.Errorf("the owner sent its last request %s after the failure, want until %s", last(owner).Sub(failed), test.stops)
				}
				if begun := time.Since(last(other)) < time.Second; begun != (test.begins > 0) {
					t.Errorf("the other replica sends requests: %t", begun)
				}
				if got := gather(t, owner.metrics)["interruptions_total"]; got != test.interruptions {
					t.Errorf("%v interruptions, want %v", got, test.interruptions)
				}
				n.cut(func(_, _ map[string]bool) {})
				<-time.After(time.Minute)
				if min(time.Since(last(owner)), time.Since(last(other))) > time.Second {
					t.Error("no requests are sent after the failure")
				}
				if n.app.most != 2 {
					t.Errorf("the backend had %d requests at a time, want 2", n.app.most)
				}
				cancel()
				clients.Wait()
				owner.kill()
				other.kill()
			})
		})
	}
}

// TestAnnounceStopped checks that a former member without requests does not delay the next owner, and that one with a request does until it
// must have stopped.
func TestAnnounceStopped(t *testing.T) {
	for name, hold := range map[string]time.Duration{"no requests": 0, "a request in flight": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n, owner, other := startPartitions(t)
				<-time.After(10 * time.Second)
				var clients sync.WaitGroup
				if hold > 0 {
					clients.Go(func() { n.send(owner, hold) })
				}
				synctest.Wait()
				if err := owner.membership.Release(t.Context()); err != nil {
					t.Fatal(err)
				}
				// The other replica confirms its last request.
				<-time.After(time.Minute)
				if err := owner.AnnounceStopped(t.Context()); err != nil {
					t.Error(err)
				}
				owner.kill()
				left := time.Now()
				n.cut(func(_, noPeers map[string]bool) { noPeers[owner.name] = true })
				clients.Go(func() { n.send(other, 0) })
				clients.Wait()
				if waited := time.Since(left); hold == 0 && waited > 0 || hold > 0 && (waited < stopTime-ownership.Validity || waited > time.Minute) {
					t.Errorf("the other replica waited for %s", waited)
				}
				if n.app.most > 2 {
					t.Errorf("the backend had %d concurrent requests, want at most 2", n.app.most)
				}
				other.kill()
			})
		})
	}
}

// TestSuspended checks that a gateway without a standing rejects requests to Revisions with containerConcurrency, and no others, until it
// is confirmed.
func TestSuspended(t *testing.T) {
	app := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "ok") })
	for _, forwarder := range forwarders {
		t.Run(forwarder.name, func(t *testing.T) {
			standing := ownership.NewStanding()
			options := Options{Standing: standing, StandardOnly: forwarder.standardOnly}
			unlimited, limited := serve(t, options, revision(0), app), serve(t, options, revision(1), app)
			if res, body := unlimited.do(t, unlimited.request(t, http.MethodGet, nil)); body != "ok" {
				t.Errorf("without a limit: %s %q", res.Status, body)
			}
			res, _ := limited.do(t, limited.request(t, http.MethodGet, nil))
			if res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "" {
				t.Errorf("%s, Retry-After %q", res.Status, res.Header.Get("Retry-After"))
			}
			standing.Confirm(time.Now().Add(time.Hour))
			if res, body := limited.do(t, limited.request(t, http.MethodGet, nil)); body != "ok" {
				t.Errorf("confirmed: %s %q", res.Status, body)
			}
		})
	}
}

// TestInterrupted checks that a lapse of the standing ends requests at backends with containerConcurrency on all paths, before and after
// the response has begun, and that they keep their places until the application has ended them (serving 8-7).
func TestInterrupted(t *testing.T) {
	for _, streams := range []bool{false, true} {
		for _, path := range paths {
			t.Run(fmt.Sprintf("%s, streams %t", path.name, streams), func(t *testing.T) {
				app, standing := newStubborn(streams), ownership.NewStanding()
				standing.Confirm(time.Now().Add(time.Hour))
				spec := revision(1)
				if path.http2 {
					spec.Protocol = routing.H2C
				}
				b := serve(t, Options{StandardOnly: path.standardOnly, Standing: standing}, spec, app)
				defer close(app.end)
				if path.http2 {
					b.h2c()
				}
				request := b.request(t, http.MethodPost, streamed("hello"))
				if path.plain {
					request = b.request(t, http.MethodPost, nil)
				}
				ended := make(chan int, 1)
				go func() {
					res, err := b.client.Do(request)
					if err != nil {
						ended <- 0
						return
					}
					defer res.Body.Close()
					if _, err := io.Copy(io.Discard, res.Body); err != nil {
						ended <- 0
						return
					}
					ended <- res.StatusCode
				}()
				<-app.began
				b.lapsed()
				if status := <-ended; status != 0 && status != http.StatusServiceUnavailable {
					t.Errorf("the interrupted request got %d", status)
				}
				<-app.canceled
				if n := inFlight(b.Gateway)["i-1"]; n != 1 {
					t.Errorf("%d requests in flight while the application still works on one", n)
				}
			})
		}
	}
}

// A lapse ends upgraded connections too.
func TestInterruptedTunnel(t *testing.T) {
	standing := ownership.NewStanding()
	standing.Confirm(time.Now().Add(time.Hour))
	b := serve(t, Options{Standing: standing}, revision(1), upgrading(func(conn net.Conn, from io.Reader) { echo(conn, from) }))
	conn, reader := b.upgrade(t)
	fmt.Fprintln(conn, "hello")
	if line, err := reader.ReadString('\n'); line != "hello\n" {
		t.Fatalf("%q, %v", line, err)
	}
	b.lapsed()
	if _, err := io.Copy(io.Discard, reader); err != nil {
		t.Errorf("the connection ends with %v", err)
	}
}

package membership

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// cluster is a server for Leases, which may be down for all or some replicas.
type cluster struct {
	*testing.T
	client *fake.Clientset

	mu   sync.Mutex
	down map[string]bool
}

// replica is a running Membership.
type replica struct {
	*Membership
	// kill ends it like the kill of its process.
	kill func()
}

func newCluster(t *testing.T) *cluster {
	return &cluster{T: t, client: fake.NewClientset(), down: map[string]bool{}}
}

// reach returns a client whose requests fail while its name is down.
func (c *cluster) reach(name string) kubernetes.Interface {
	client := &fake.Clientset{}
	client.AddReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.down[name], nil, errors.New("the server is down")
	})
	client.AddReactor("*", "*", clienttesting.ObjectReaction(c.client.Tracker()))
	client.AddWatchReactor("*", c.client.WatchReactionChain[0].React)
	return client
}

// listing is a client whose watches do not begin with the existing objects.
type listing struct {
	coordinationclient.LeasesGetter
}

// IsWatchListSemanticsUnSupported informs reflectors of that.
func (listing) IsWatchListSemanticsUnSupported() bool { return true }

func (c *cluster) set(down bool, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		c.down[name] = down
	}
}

func (c *cluster) start(name string) *replica {
	ctx, kill := context.WithCancel(klog.NewContext(c.Context(), logr.Discard()))
	m := New(Options{
		Client: listing{c.reach(name).CoordinationV1()}, Namespace: "system", Self: Member{Name: name, Address: name + ":8444"},
		PodUID: "uid-1", Clock: clock.RealClock{},
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	return &replica{m, func() { kill(); <-done }}
}

func (c *cluster) join(name string) *replica {
	c.Helper()
	r := c.start(name)
	if err := r.Join(c.Context()); err != nil {
		c.Fatal(err)
	}
	return r
}

func (c *cluster) expect(when string, r *replica, want string) {
	c.Helper()
	synctest.Wait()
	var names []string
	for _, m := range r.View().Current().Members() {
		names = append(names, m.Name)
	}
	if have := strings.Join(names, " "); have != want {
		c.Errorf("%s: %s sees %q, want %q", when, r.options.Self.Name, have, want)
	}
}

func after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// TestMembership covers the events in the life of members.
func TestMembership(t *testing.T) {
	for name, test := range map[string]func(c *cluster, a, b *replica){
		"nothing": func(c *cluster, a, b *replica) {
			after(2 * time.Minute)
			c.expect("later", a, "a b")
			c.expect("later", b, "a b")
		},
		"a third that only follows at first": func(c *cluster, a, _ *replica) {
			x := c.start("x")
			defer x.kill()
			if err := x.Synced(c.Context()); err != nil {
				c.Fatal(err)
			}
			c.expect("before it joins", x, "a b")
			c.expect("before it joins", a, "a b")
			if slices.ContainsFunc(x.View().Current().Members(), func(m Member) bool { return m.Name == "x" }) {
				c.Error("x is a member before it joined")
			}
			if err := x.Join(c.Context()); err != nil {
				c.Fatal(err)
			}
			c.expect("after", x, "a b x")
			c.expect("after", a, "a b x")
		},
		"leaving": func(c *cluster, a, b *replica) {
			if err := b.Release(c.Context()); err != nil {
				c.Fatal(err)
			}
			c.expect("at once", a, "a")
			c.expect("at once", b, "a")
			after(time.Minute)
			c.expect("later", a, "a")
		},
		"killing": func(c *cluster, a, b *replica) {
			b.kill()
			after(leaseDuration - renewEvery - time.Second)
			c.expect("soon", a, "a b")
			after(renewEvery + 3*time.Second)
			c.expect("when its Lease has expired", a, "a")
			b = c.join("b")
			defer b.kill()
			c.expect("when it runs again", a, "a b")
		},
		"the server down": func(c *cluster, a, b *replica) {
			c.set(true, "a", "b")
			after(time.Minute)
			c.expect("while it is down", a, "a b")
			c.set(false, "a")
			after(leaseDuration - time.Second)
			c.expect("right after", a, "a b")
			c.set(false, "b")
			after(time.Minute)
			c.expect("later", a, "a b")
			c.expect("later", b, "a b")
		},
		"the server down, and one stopped meanwhile": func(c *cluster, a, b *replica) {
			c.set(true, "a", "b")
			after(10 * time.Second)
			b.kill()
			after(20 * time.Second)
			c.expect("while it is down", a, "a b")
			c.set(false, "a")
			after(renewEvery + leaseDuration + 2*time.Second)
			c.expect("later", a, "a")
		},
		"one cut off": func(c *cluster, a, b *replica) {
			c.set(true, "b")
			after(time.Minute)
			c.expect("while it is", a, "a")
			c.expect("while it is", b, "a b")
			c.set(false, "b")
			after(2 * renewEvery)
			c.expect("after", a, "a b")
			c.expect("after", b, "a b")
		},
		"another address": func(c *cluster, a, b *replica) {
			b.kill()
			b.options.Self.Address = "elsewhere:8444"
			moved := New(b.options)
			ctx, stop := context.WithCancel(klog.NewContext(c.Context(), logr.Discard()))
			done := make(chan struct{})
			go func() { defer close(done); moved.Run(ctx) }()
			defer func() { stop(); <-done }()
			if err := moved.Join(c.Context()); err != nil {
				c.Fatal(err)
			}
			synctest.Wait()
			if have := a.View().Current().Members()[1].Address; have != "elsewhere:8444" {
				c.Errorf("a sees b at %s", have)
			}
		},
		"a deleted Lease": func(c *cluster, a, _ *replica) {
			if err := c.client.CoordinationV1().Leases("system").Delete(c.Context(), leasePrefix+"b", metav1.DeleteOptions{}); err != nil {
				c.Fatal(err)
			}
			after(3 * renewEvery)
			c.expect("later", a, "a b")
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCluster(t)
				a, b := c.join("a"), c.join("b")
				defer a.kill()
				defer b.kill()
				after(time.Second)
				c.expect("at first", a, "a b")
				c.expect("at first", b, "a b")
				test(c, a, b)
			})
		})
	}
}

// A Lease has its Pod as owner, and names the replica and its address.
func TestLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.join("a")
		defer a.kill()
		lease, err := c.client.CoordinationV1().Leases("system").Get(t.Context(), "knative-apiserver-member-a", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if *lease.Spec.HolderIdentity != "a:8444" || *lease.Spec.LeaseDurationSeconds != 6 || lease.Labels[componentLabel] != "member" {
			t.Errorf("the Lease is %v", lease)
		}
		same := func(o metav1.OwnerReference) bool {
			return o.APIVersion == "v1" && o.Kind == "Pod" && o.Name == "a" && o.UID == "uid-1"
		}
		if !slices.ContainsFunc(lease.OwnerReferences, same) {
			t.Errorf("the Lease is owned by %v", lease.OwnerReferences)
		}
	})
}

// TestOrphanedLease checks that the Lease of a lost member without an owner is deleted after some time. The garbage
// collector deletes the Leases of Pods.
func TestOrphanedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b, lost := c.join("a"), c.join("b"), c.join("lost")
		defer a.kill()
		lost.kill()
		b.kill()
		leases := c.client.CoordinationV1().Leases("system")
		lease, err := leases.Get(t.Context(), "knative-apiserver-member-lost", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lease.UID, lease.ResourceVersion, lease.OwnerReferences = "lease", "7", nil
		if _, err := leases.Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect := func(when, want string) {
			t.Helper()
			synctest.Wait()
			list, err := leases.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, lease := range list.Items {
				names = append(names, strings.TrimPrefix(lease.Name, leasePrefix))
			}
			if have := strings.Join(names, " "); have != want {
				t.Errorf("%s: Leases of %q, want %q", when, have, want)
			}
		}
		after(orphanedAfter)
		expect("before", "a b lost")
		after(2 * renewEvery)
		expect("after", "a b")
	})
}

// Join ends with the context, and returns the cause of its failure.
func TestJoinEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a := c.start("a")
		defer a.kill()
		after(time.Second)
		c.set(true, "a")
		ctx, cancel := context.WithTimeout(klog.NewContext(t.Context(), logr.Discard()), 10*time.Second)
		defer cancel()
		if err := a.Join(ctx); err == nil || !strings.Contains(err.Error(), "the server is down") {
			t.Errorf("joining without a server: %v", err)
		}
		c.expect("after", a, "")
	})
}

// TestUpToDate checks whether a replica has observed the latest renewal of another one's Lease.
func TestUpToDate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t)
		a, b := c.join("a"), c.join("b")
		expect := func(when string, want, fails bool) {
			t.Helper()
			synctest.Wait()
			if got, err := a.UpToDate(t.Context(), "b"); got != want || (err != nil) != fails {
				t.Errorf("%s: up to date %t, %v; want %t", when, got, err, want)
			}
		}
		after(10 * time.Second)
		expect("a member", true, false)
		b.kill()
		after(10 * time.Second)
		expect("killed", true, false)
		c.set(true, "a")
		expect("killed, no server", false, true)
		c.set(false, "a")
		a.mu.Lock()
		a.others["b"].renewal = &metav1.MicroTime{}
		a.mu.Unlock()
		expect("an unobserved renewal", false, false)
		b = c.join("b")
		expect("joined again", true, false)
		if err := b.Release(t.Context()); err != nil {
			t.Error(err)
		}
		expect("released", true, false)
		b.kill()
		a.kill()
	})
}

package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// leaderLease is the name of the Lease that the leader holds.
	leaderLease = "knative-apiserver-leader"
	// gatewayLabel is the label of the Pods with a gateway.
	gatewayLabel = "knative-apiserver/gateway"
	// controllersComponent is the part of the name of a group whose replicas run the controllers of Serving.
	controllersComponent = "controllers"
	// announceTimeout limits the time of announcing the shutdown to peers.
	announceTimeout = 5 * time.Second
)

// ReplicaConfig configures a server that is one of several replicas.
type ReplicaConfig struct {
	// PodName and PodUID identify the replica's Pod. PodUID may be empty.
	PodName string
	PodUID  types.UID
	// PodIP is the address at which peers reach Listener and the ports of etcd and the event log.
	PodIP    string
	Listener net.Listener
	// Group is the name of the replicas with the same components, GatewayGroup the name of the replicas with a gateway.
	Group, GatewayGroup string
	// Leads is true if the replica takes part in the election of the leader.
	Leads bool
	// ReadOnly is true if the replica has no permission to write to the host cluster. The replicas that may lead write its Lease, and
	// start first backends.
	ReadOnly bool
	// Members configures the embedded etcd and event log that the replica is a member of.
	Members MembersConfig
}

// replica is this replica with the connections to its peers.
type replica struct {
	config     ReplicaConfig
	membership *membership.Membership
	// gateways is the membership of the replicas with a gateway, which may be the same.
	gateways *membership.Membership
	// leaders are the replicas that may lead, which write the Lease of a replica that only reads. Nil otherwise.
	leaders  *membership.Membership
	election *leader.Election
	client   *peer.Client
	server   *peer.Server
}

// newElection returns the election of the leader in a namespace of the host cluster.
func newElection(config *rest.Config, namespace string, c ReplicaConfig) (*leader.Election, error) {
	leases, err := newLeases(config)
	if err != nil {
		return nil, err
	}
	return leader.NewElection(leases, namespace, leaderLease, identity(c.self()))
}

// newReplica returns a replica that peers do not know before it joins, with TLS for the connections between replicas. The
// memberships are Leases in a namespace of the host cluster.
func newReplica(config *rest.Config, namespace string, c ReplicaConfig, election *leader.Election, tls *tls.Config) (*replica, error) {
	leases, err := newLeases(config)
	if err != nil {
		return nil, err
	}
	options := func(group string) membership.Options {
		return membership.Options{
			Client: leases, Namespace: namespace, Installation: group, Self: c.self(), PodUID: c.PodUID, Clock: clock.RealClock{},
		}
	}
	r := &replica{config: c, election: election, client: peer.NewClient(tls), server: peer.NewServer(tls)}
	own := options(c.Group)
	if c.ReadOnly {
		others := options("")
		others.Includes = func(group string) bool { return slices.Contains(strings.Split(group, "."), controllersComponent) }
		r.leaders = membership.New(others)
		own.Announcer = &membership.Registration{Send: r.callRegistrars, Self: c.self(), PodUID: c.PodUID}
	}
	r.membership = membership.New(own)
	if r.gateways = r.membership; c.GatewayGroup != c.Group {
		r.gateways = membership.New(options(c.GatewayGroup))
	}
	return r, nil
}

// callRegistrars sends a request without a body to one of the replicas that may lead after the other, until one succeeds.
func (r *replica) callRegistrars(ctx context.Context, method, path string, query url.Values) error {
	err := errNoLeader
	for _, to := range r.registrars() {
		if err = (peer.Call{Method: method, Path: path, Query: query}).Do(ctx, r.client, to); err == nil {
			return nil
		}
	}
	return err
}

// registrars returns the replicas that may lead, the leader first.
func (r *replica) registrars() []membership.Member {
	all := slices.Clone(r.leaders.View().Current().Members())
	leader, _ := memberOf(r.election.Leader())
	slices.SortStableFunc(all, func(a, b membership.Member) int {
		switch {
		case a.Name == leader.Name && b.Name != leader.Name:
			return -1
		case b.Name == leader.Name && a.Name != leader.Name:
			return 1
		default:
			return 0
		}
	})
	return all
}

// memberships returns all memberships that this replica follows.
func (r *replica) memberships() []*membership.Membership {
	all := []*membership.Membership{r.membership}
	if r.gateways != r.membership {
		all = append(all, r.gateways)
	}
	if r.leaders != nil {
		all = append(all, r.leaders)
	}
	return all
}

func newLeases(config *rest.Config) (*coordinationclient.CoordinationV1Client, error) {
	leases, err := coordinationclient.NewForConfig(host.BuiltIn(config))
	if err != nil {
		return nil, fmt.Errorf("create client of Leases: %w", err)
	}
	return leases, nil
}

// self returns the replica as a member.
func (c *ReplicaConfig) self() membership.Member {
	return membership.Member{Name: c.PodName, Address: net.JoinHostPort(c.PodIP, fmt.Sprint(port(c.Listener)))}
}

// identity returns the identity of a member in the election, which contains its address. A restarted process in the same Pod has
// another identity, so that it does not lead before it is ready.
func identity(m membership.Member) string { return m.Name + "@" + m.Address + "#" + rand.Text() }

// memberOf is the inverse of identity.
func memberOf(identity string) (m membership.Member, ok bool) {
	m.Name, identity, ok = strings.Cut(identity, "@")
	m.Address, _, _ = strings.Cut(identity, "#")
	return m, ok
}

// Transport sends requests to peers by their addresses.
func (r *replica) Transport() http.RoundTripper { return r.client }

// Members returns the replicas with the same components.
func (r *replica) Members() *membership.View { return r.membership.View() }

// Gateways returns the replicas with a gateway.
func (r *replica) Gateways() *membership.View { return r.gateways.View() }

// Leading reports whether this replica writes objects of Serving.
func (r *replica) Leading() bool { return r.election.Leading() }

// addresses returns the addresses of all replicas.
func (r *replica) addresses() []netip.Addr {
	var addresses []netip.Addr
	for _, following := range r.memberships() {
		for _, member := range following.View().Current().Members() {
			if at, err := netip.ParseAddrPort(member.Address); err == nil {
				addresses = append(addresses, at.Addr().Unmap())
			}
		}
	}
	return addresses
}

// lead makes controllers write while this replica leads.
func (r *replica) lead(all ...*reconciler.Controller) {
	for _, c := range all {
		c.Lead(func(types.NamespacedName) bool { return r.Leading() })
	}
	r.election.Subscribe(func(leading bool) {
		if !leading {
			return
		}
		for _, c := range all {
			c.Requeue(func(types.NamespacedName) bool { return true })
		}
	})
}

// errNoLeader is the error of a report without a known leader.
var errNoLeader = errors.New("no replica leads")

// report sends a report to the leader.
func (r *replica) report(ctx context.Context, report *autoscaler.Report) error {
	to, ok := memberOf(r.election.Leader())
	if !ok {
		return errNoLeader
	}
	report.Member = r.config.PodName
	return report.Post(ctx, r.client, to)
}

// following is the module that follows membership and leadership. It is ready when the existing replicas are known. When it
// retires, this replica stops to lead and to own anything.
type following struct {
	lifecycle.Tasks
	*replica
	once    sync.Once
	retired chan struct{}
}

func newFollowing(r *replica) *following { return &following{replica: r, retired: make(chan struct{})} }

// Name implements lifecycle.Module.
func (*following) Name() string { return "membership" }

// Start implements lifecycle.Module.
func (m *following) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	for _, following := range m.memberships() {
		m.Run(following.Run)
	}
	m.Run(m.announceShutdown)
	m.Run(m.elect)
	return nil
}

// Ready implements lifecycle.Module.
func (m *following) Ready(ctx context.Context) error {
	for _, following := range m.memberships() {
		if err := following.Synced(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Retire announces the shutdown to peers, and gives up the leadership.
func (m *following) Retire() { m.once.Do(func() { close(m.retired) }) }

// Stop implements lifecycle.Module.
func (m *following) Stop(ctx context.Context) error {
	m.Retire()
	return m.Tasks.Stop(ctx)
}

// announceShutdown removes this replica from the membership when it retires.
func (m *following) announceShutdown(ctx context.Context) {
	<-m.retired
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), announceTimeout)
	defer cancel()
	if err := m.membership.Release(ctx); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to announce shutdown to peers")
	}
}

// elect takes part in the election, or follows it, until this replica retires.
func (m *following) elect(ctx context.Context) {
	ctx, retire := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		<-m.retired
		retire()
	}()
	if m.config.Leads {
		m.election.Run(ctx)
	} else {
		m.election.Watch(ctx)
	}
}

// joined is the module that serves peers. Once it is ready, peers forward to this replica what it owns, until all of its own work
// has ended.
type joined struct {
	lifecycle.Tasks
	*replica
}

// Name implements lifecycle.Module.
func (*joined) Name() string { return "peers" }

// Start implements lifecycle.Module.
func (m *joined) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	m.Run(func(ctx context.Context) {
		if err := m.server.Serve(ctx, m.config.Listener, stopTimeout); err != nil {
			klog.FromContext(ctx).Error(err, "Failed to serve peers")
		}
	})
	return m.Init(ctx, m.membership.Join)
}

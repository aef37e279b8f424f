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
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // the metric leader_election_master_status
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/gateway"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// leaderLease is the name of the Lease that the leader holds.
	leaderLease = "knative-apiserver-leader"
	// gatewayLabel is the label of the Pods with a gateway.
	gatewayLabel = "knative-apiserver/gateway"
	// Parts of the name of a group: its replicas run the controllers of Serving, a gateway or a broker. The name of a group of gateways
	// without other components is gatewayComponent.
	controllersComponent, gatewayComponent, brokerComponent = "controllers", "gateway", "broker"
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
	// Group is the name of the replicas with the same components: the sorted components, joined by dots.
	Group string
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
	config ReplicaConfig
	// membership follows the replicas of all groups. While an installation changes its components, several groups may have the same component.
	membership *membership.Membership
	// brokers, gateways and leaders are the replicas with a broker, with a gateway, and with the controllers, which may lead.
	brokers, gateways, leaders *membership.View
	election                   *leader.Election
	client                     *peer.Client
	server                     *peer.Server
	// standing is confirmed by the renewals of the Lease. gateway is the gateway that depends on it, or nil.
	standing *ownership.Standing
	gateway  *gateway.Gateway
}

// newElection returns the election of the leader in a namespace of the host cluster.
func newElection(config *rest.Config, namespace string, c ReplicaConfig) (*leader.Election, error) {
	leases, err := newLeases(config)
	if err != nil {
		return nil, err
	}
	return leader.NewElection(leases, namespace, leaderLease, identity(c.self()))
}

// newReplica returns a replica that is unknown to peers until it joins, with TLS for the connections between replicas. The
// memberships are Leases in a namespace of the host cluster.
func newReplica(config *rest.Config, namespace string, c ReplicaConfig, election *leader.Election, tls *tls.Config) (*replica, error) {
	leases, err := newLeases(config)
	if err != nil {
		return nil, err
	}
	r := &replica{config: c, election: election, client: peer.NewClient(tls), server: peer.NewServer(tls), standing: ownership.NewStanding()}
	options := membership.Options{
		Client: leases, Namespace: namespace, Installation: c.Group, Self: c.self(), PodUID: c.PodUID, Clock: clock.RealClock{},
		Includes: func(string) bool { return true }, Renewed: r.standing.Confirm,
	}
	if c.ReadOnly {
		options.Announcer = &membership.Registration{Send: func(ctx context.Context, method, path string, query url.Values) error {
			return r.callRegistrars(ctx, peer.Call{Method: method, Path: path, Query: query})
		}, Self: c.self(), PodUID: c.PodUID}
	}
	r.membership = membership.New(options)
	with := func(component string) *membership.View {
		return r.membership.ViewOf(func(group string) bool { return slices.Contains(strings.Split(group, "."), component) })
	}
	r.brokers, r.gateways, r.leaders = with(brokerComponent), with(gatewayComponent), with(controllersComponent)
	return r, nil
}

// callRegistrars sends a request without a body to the replicas that may lead, one after the other, until one succeeds.
func (r *replica) callRegistrars(ctx context.Context, call peer.Call) error {
	err := errNoLeader
	for _, to := range r.registrars() {
		if err = call.Do(ctx, r.client, to); err == nil {
			return nil
		}
	}
	return err
}

// registrars returns the replicas that may lead, the leader first.
func (r *replica) registrars() []membership.Member {
	all := slices.Clone(r.leaders.Current().Members())
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

// Brokers returns the replicas with a broker.
func (r *replica) Brokers() *membership.View { return r.brokers }

// Gateways returns the replicas with a gateway.
func (r *replica) Gateways() *membership.View { return r.gateways }

// Leading reports whether this replica writes objects of Serving.
func (r *replica) Leading() bool { return r.election.Leading() }

// addresses returns the addresses of all replicas.
func (r *replica) addresses() []netip.Addr {
	var addresses []netip.Addr
	for _, member := range r.membership.View().Current().Members() {
		if at, err := netip.ParseAddrPort(member.Address); err == nil {
			addresses = append(addresses, at.Addr().Unmap())
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

// following is the module that follows membership and leadership. It is ready when the existing replicas are known. When it retires,
// this replica gives up leadership and ownership.
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
	m.Run(m.membership.Run)
	if m.gateway != nil {
		m.Run(m.gateway.KeepStanding)
	}
	m.Run(m.announceShutdown)
	m.Run(m.elect)
	return nil
}

// Ready implements lifecycle.Module.
func (m *following) Ready(ctx context.Context) error { return m.membership.Synced(ctx) }

// Retire announces the shutdown to peers, and gives up the leadership.
func (m *following) Retire() { m.once.Do(func() { close(m.retired) }) }

// Stop implements lifecycle.Module.
func (m *following) Stop(ctx context.Context) error {
	m.Retire()
	if m.gateway != nil {
		if err := m.gateway.AnnounceStopped(ctx); err != nil {
			klog.FromContext(ctx).Info("Failed to announce the end of all requests to peers", "reason", err.Error())
		}
	}
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

// joined is the module that serves peers. Once it is ready, peers forward the requests and events that this replica owns, until all
// of its own work has ended.
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

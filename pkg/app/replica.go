package app

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/serving/autoscaler"
	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/leader"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

const (
	// leaderLease is the Lease of the replica whose controllers of Serving write.
	leaderLease = "knative-apiserver-leader"
	// leaveTimeout bounds how long the others are told that this replica goes.
	leaveTimeout = 5 * time.Second
)

// ReplicaOptions are what a server needs to know that is one of several.
type ReplicaOptions struct {
	// Name is that of its Pod.
	Name string
	// UID of its Pod; empty if it is not known.
	UID types.UID
	// IP is where the others reach it, at the port of Listener.
	IP       string
	Listener net.Listener
	// Group tells replicas that run other components apart.
	Group string
	// Gateways is the group of those with a gateway.
	Gateways string
	// Leads tells whether it may lead.
	Leads bool
}

// Replica is this server among others of its installation.
type Replica struct {
	options    ReplicaOptions
	membership *membership.Membership
	// gateways are the replicas that have a gateway; the same where all do.
	gateways *membership.Membership
	election *leader.Election
	// tls is that of the connections to the others and from them.
	tls    *tls.Config
	client *peer.Client
	server *peer.Server
}

// NewReplica returns a replica that the others do not know of before its components run. config reaches the cluster in
// whose system namespace they meet.
func NewReplica(config *rest.Config, systemNamespace string, o ReplicaOptions) (*Replica, error) {
	leases, err := coordinationclient.NewForConfig(host.BuiltIn(config))
	if err != nil {
		return nil, fmt.Errorf("making a client of the host cluster's Leases: %w", err)
	}
	self := membership.Member{Name: o.Name, Address: net.JoinHostPort(o.IP, strconv.Itoa(port(o.Listener)))}
	group := func(name string) *membership.Membership {
		return membership.New(membership.Options{
			Client: leases, Namespace: systemNamespace, Installation: name, Self: self, PodUID: o.UID, Clock: clock.RealClock{},
		})
	}
	r := &Replica{options: o, membership: group(o.Group)}
	if r.gateways = r.membership; o.Gateways != o.Group {
		r.gateways = group(o.Gateways)
	}
	if r.election, err = leader.NewElection(leases, systemNamespace, leaderLease, identity(self)); err != nil {
		return nil, err
	}
	return r, nil
}

// identity is what a member is known by in the election, which tells also where it is reached. A process that was started
// again in the same Pod is another one: it does not lead before it is ready to.
func identity(m membership.Member) string { return m.Name + "@" + m.Address + "#" + rand.Text() }

// memberOf is the inverse of identity.
func memberOf(identity string) (m membership.Member, ok bool) {
	m.Name, identity, ok = strings.Cut(identity, "@")
	m.Address, _, _ = strings.Cut(identity, "#")
	return m, ok
}

// secure sets the certificates of the connections to the others and from them.
func (r *Replica) secure(config *tls.Config) {
	r.tls, r.client, r.server = config, peer.NewClient(config), peer.NewServer(config)
}

// TLS returns the configuration of the connections to the others and from them.
func (r *Replica) TLS() *tls.Config { return r.tls }

// Transport takes requests to the others, by their addresses.
func (r *Replica) Transport() http.RoundTripper { return r.client }

// Members are the replicas that run the same components.
func (r *Replica) Members() *membership.View { return r.membership.View() }

// Gateways are the replicas that have a gateway.
func (r *Replica) Gateways() *membership.View { return r.gateways.View() }

// Leading tells whether this replica writes what is not of Eventing.
func (r *Replica) Leading() bool { return r.election.Leading() }

// lead has controllers write while this replica leads.
func (r *Replica) lead(all ...*reconciler.Controller) {
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

// follow has fn called with each change of whether this replica leads, which one that is alone does for good.
func (r *Replica) follow(fn func(leading bool)) {
	if r == nil {
		fn(true)
		return
	}
	r.election.Subscribe(fn)
}

// errNoLeader is why nothing is told to the replica that leads.
var errNoLeader = errors.New("no replica leads")

// report tells the replica that leads.
func (r *Replica) report(ctx context.Context, report *autoscaler.Report) error {
	to, ok := memberOf(r.election.Leader())
	if !ok {
		return errNoLeader
	}
	report.Member = r.options.Name
	return report.Post(ctx, r.client, to)
}

// start follows the others until ctx ends, and returns when those that there are are known. From when stopping ends, which
// is some time before, this replica neither leads nor owns anything.
func (r *Replica) start(ctx, stopping context.Context, run func(func(context.Context))) error {
	run(r.membership.Run)
	run(func(ctx context.Context) {
		<-stopping.Done()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTimeout)
		defer cancel()
		if err := r.membership.Leave(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Telling the other replicas that this one goes failed")
		}
	})
	if r.options.Leads {
		run(func(context.Context) { r.election.Run(stopping) })
	} else {
		run(func(context.Context) { r.election.Watch(stopping) })
	}
	if r.gateways != r.membership {
		run(r.gateways.Run)
		if err := r.gateways.Synced(ctx); err != nil {
			return err
		}
	}
	return r.membership.Synced(ctx)
}

// part returns the part that answers the others, which then leave things to this replica. They are answered until all that
// is under way here has ended, as they ask for it.
func (r *Replica) part() part {
	return part{prepare: func(ctx context.Context, run func(func(context.Context))) error {
		run(func(ctx context.Context) {
			if err := r.server.Serve(ctx, r.options.Listener, stopTimeout); err != nil {
				klog.FromContext(ctx).Error(err, "Serving the other replicas ended")
			}
		})
		return r.membership.Join(ctx)
	}}
}

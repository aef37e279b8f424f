package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/app"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
)

// replicaOptions are the flags of a server that runs in several replicas, as Pods of a cluster.
type replicaOptions struct {
	podName, podIP string
	podUID         string
	nodeIPs        []string
	peerService    string
	peerPort       int
	replicas       int
	etcdPeerPort   int
	etcdClientPort int
	eventLogPort   int
	selfManaged    bool
	settle         time.Duration
}

func newReplicaOptions() replicaOptions {
	return replicaOptions{
		peerService: "knative-apiserver-peers", peerPort: 8444, replicas: 1,
		etcdPeerPort: 2380, etcdClientPort: 2379, eventLogPort: 6222,
	}
}

func (o *replicaOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.podName, "pod-name", "", "Name of the Pod of this replica. Empty runs a single server without peers.")
	flags.StringVar(&o.podIP, "pod-ip", "", "IP address of this Pod, by which its peers reach it.")
	flags.StringVar(&o.podUID, "pod-uid", "", "UID of this Pod, the owner of its Lease. Empty creates a Lease without an owner.")
	flags.StringSliceVar(&o.nodeIPs, "node-ips", nil, "IP addresses of the node of this Pod. Events are not sent there unless --allow-destination contains them.")
	flags.StringVar(&o.peerService, "peer-service", o.peerService, "Name of the headless Service in the system namespace by which the replicas of a StatefulSet find each other.")
	flags.IntVar(&o.peerPort, "peer-port", o.peerPort, "Port for requests and events that peers forward, with mutual TLS.")
	flags.IntVar(&o.replicas, "replicas", o.replicas, "Number of replicas of the StatefulSet, each a member of the embedded etcd and event log: 1, 3 or 5.")
	flags.IntVar(&o.etcdPeerPort, "etcd-peer-port", o.etcdPeerPort, "Port for traffic between the members of the embedded etcd.")
	flags.IntVar(&o.etcdClientPort, "etcd-client-port", o.etcdClientPort, "Port for requests of new members to join the embedded etcd.")
	flags.IntVar(&o.eventLogPort, "event-log-route-port", o.eventLogPort, "Port for traffic between the members of the embedded event log.")
	flags.BoolVar(&o.selfManaged, "self-managed-certificates", false,
		"Issuing and rotation of the serving certificate by the server's own CA, which is stored in the Secret knative-apiserver-ca "+
			"and written to the APIServices labeled "+certs.InjectLabel+"=true.")
	flags.DurationVar(&o.settle, "certificate-settle-duration", 2*time.Minute, "Duration of each step of a rotation of that CA, within which all replicas and clients must observe it.")
}

// several reports whether the server is one of several replicas.
func (o *replicaOptions) several() bool { return o.podName != "" }

// validate returns all errors of the options.
func (o *replicaOptions) validate() error {
	var errs []error
	for _, ip := range o.nodeIPs {
		if _, err := netip.ParseAddr(ip); err != nil {
			errs = append(errs, fmt.Errorf("--node-ips %q must be IP addresses separated by commas", ip))
		}
	}
	if o.settle <= 0 {
		errs = append(errs, fmt.Errorf("--certificate-settle-duration %s must be more than 0s", o.settle))
	}
	if !o.several() {
		if o.replicas != 1 {
			errs = append(errs, errors.New("--replicas must be 1 without --pod-name"))
		}
		return errors.Join(errs...)
	}
	if faults := validation.IsDNS1123Label(o.podName); len(faults) > 0 {
		errs = append(errs, fmt.Errorf("--pod-name %q: %s", o.podName, strings.Join(faults, "; ")))
	}
	if net.ParseIP(o.podIP) == nil {
		errs = append(errs, fmt.Errorf("--pod-ip %q must be an IP address", o.podIP))
	}
	if o.replicas != 1 && o.replicas != 3 && o.replicas != 5 {
		errs = append(errs, fmt.Errorf("--replicas %d must be 1, 3 or 5: an even number of members survives no more failures than one less", o.replicas))
	}
	return errors.Join(append(errs, validatePort("peer-port", o.peerPort, 1), validatePort("etcd-peer-port", o.etcdPeerPort, 1),
		validatePort("etcd-client-port", o.etcdClientPort, 1), validatePort("event-log-route-port", o.eventLogPort, 1))...)
}

// ownAddresses returns the addresses of this Pod and its node that flags specify.
func (o *replicaOptions) ownAddresses() []netip.Addr {
	var own []netip.Addr
	for _, ip := range append([]string{o.podIP}, o.nodeIPs...) {
		if addr, err := netip.ParseAddr(ip); err == nil {
			own = append(own, addr.Unmap())
		}
	}
	return own
}

// stateful returns the name of the StatefulSet of this Pod.
func (o *replicaOptions) stateful() (string, error) {
	if i := strings.LastIndexByte(o.podName, '-'); i > 0 {
		if _, err := strconv.Atoi(o.podName[i+1:]); err == nil {
			return o.podName[:i], nil
		}
	}
	return "", fmt.Errorf("--pod-name %q must be that of a Pod of a StatefulSet, such as knative-apiserver-0", o.podName)
}

// hostName returns the DNS name of a Pod of the StatefulSet.
func (o *aggregatedOptions) hostName(pod string) string {
	return pod + "." + o.replica.peerService + "." + o.systemNamespace + ".svc." + o.clusterDomain
}

// hostNames returns the DNS names of all Pods of the StatefulSet.
func (o *aggregatedOptions) hostNames() ([]string, error) {
	set, err := o.replica.stateful()
	if err != nil {
		return nil, err
	}
	names := make([]string, o.replica.replicas)
	for i := range names {
		names[i] = o.hostName(fmt.Sprintf("%s-%d", set, i))
	}
	return names, nil
}

// join makes the server one of several, which have certificates of the same authority, and a member of the embedded etcd
// where it is one. It returns nil for a server that has no others.
func (o *completedAggregated) join(ctx context.Context, host *rest.Config, listener net.Listener) (*app.Replica, error) {
	if !o.replica.several() && !o.replica.selfManaged {
		return nil, nil
	}
	r := &o.replica
	var replica *app.Replica
	var err error
	if r.several() {
		replica, err = app.NewReplica(host, o.systemNamespace, app.ReplicaOptions{
			Name: r.podName, UID: types.UID(r.podUID), IP: r.podIP, Listener: listener,
			Group:    o.components.group(),
			Gateways: o.gatewayGroup(),
			Leads:    o.components.has(componentControllers),
		})
		if err != nil {
			return nil, err
		}
	}
	certificates, err := app.StartCertificates(ctx, host, o.systemNamespace, replica, certs.Options{
		ClusterDomain: o.clusterDomain, PodName: r.podName, PeerService: r.peerService, IPs: []net.IP{net.ParseIP(r.podIP)}, Settle: r.settle,
	})
	if err != nil {
		return nil, err
	}
	if r.selfManaged {
		o.server.Recommended.SecureServing.ServerCert.GeneratedCert = certificates.ServingCertificate()
	}
	if r.several() && o.embeddedEtcd() {
		o.server.StartEtcd = func(ctx context.Context) (*etcd.Embedded, error) {
			return o.startMember(ctx, host, certificates)
		}
	}
	return replica, nil
}

// gatewayGroup returns the name of the replicas that have a gateway: those like this one, or else those that have nothing
// else.
func (o *aggregatedOptions) gatewayGroup() string {
	if o.components.has(componentGateway) {
		return o.components.group()
	}
	return componentList{componentGateway}.group()
}

// startMember starts this server's member of the embedded etcd.
func (o *aggregatedOptions) startMember(ctx context.Context, host *rest.Config, certificates *certs.Manager) (*etcd.Embedded, error) {
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, fmt.Errorf("create client of the host cluster: %w", err)
	}
	files, err := certificates.WriteEtcdFiles(ctx, filepath.Join(o.api.DataDir, "pki"))
	if err != nil {
		return nil, err
	}
	port := strconv.Itoa
	member, err := etcd.StartMember(ctx, etcd.MemberOptions{
		Dir:          o.api.DataDir,
		Name:         o.replica.podName,
		PeerAddress:  net.JoinHostPort(o.hostName(o.replica.podName), port(o.replica.etcdPeerPort)),
		Listen:       net.JoinHostPort(o.replica.podIP, port(o.replica.etcdPeerPort)),
		ListenClient: net.JoinHostPort(o.replica.podIP, port(o.replica.etcdClientPort)),
		TLS:          etcd.TLSFiles{CertFile: files.Cert, KeyFile: files.Key, CAFile: files.CA},
		Record:       etcd.NewConfigMapRecord(client, o.systemNamespace),
		Logger:       klog.FromContext(ctx).WithName("etcd"),
	})
	if err != nil {
		return nil, err
	}
	legacyregistry.CustomMustRegister(member.Metrics())
	return member, nil
}

// eventLogCluster returns the configuration of this server's member of the embedded event log.
func (o *aggregatedOptions) eventLogCluster(replica *app.Replica) (*eventlog.Cluster, error) {
	hosts, err := o.hostNames()
	if err != nil {
		return nil, err
	}
	at := func(host string) string { return net.JoinHostPort(host, strconv.Itoa(o.replica.eventLogPort)) }
	c := &eventlog.Cluster{
		Name:       o.replica.podName,
		ListenHost: o.replica.podIP, ListenPort: o.replica.eventLogPort,
		Advertise: at(o.hostName(o.replica.podName)),
		TLS:       replica.TLS(),
	}
	for _, host := range hosts {
		c.Routes = append(c.Routes, at(host))
	}
	return c, nil
}

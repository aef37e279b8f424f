package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/knative-apiserver/knative-apiserver/pkg/app"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
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
	certificateDir string
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
		"If true, the server issues and rotates its serving certificate with its own CA, which it stores in the Secret knative-apiserver-ca "+
			"and writes to the APIServices labeled "+certs.InjectLabel+"=true.")
	flags.StringVar(&o.certificateDir, "gateway-certificate-dir", "",
		"Directory with tls.crt, tls.key and ca.crt of the Secret knative-gateway-certificate, by which a replica with only a gateway and without permission "+
			"to write to the host cluster authenticates to other replicas. They write its Lease and start Pods for its requests.")
	flags.DurationVar(&o.settle, "certificate-settle-duration", 2*time.Minute, "Duration of each step of a rotation of the server's own CA, within which all replicas and clients must observe it.")
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
	if o.certificateDir != "" && o.selfManaged {
		errs = append(errs, errors.New("--gateway-certificate-dir and --self-managed-certificates exclude each other"))
	}
	if !o.several() {
		if o.replicas != 1 {
			errs = append(errs, errors.New("--replicas must be 1 without --pod-name"))
		}
		if o.certificateDir != "" {
			errs = append(errs, errors.New("--gateway-certificate-dir requires --pod-name"))
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
	return "", fmt.Errorf("--pod-name %q must be the name of a Pod of a StatefulSet, such as knative-apiserver-0", o.podName)
}

// certificates returns the configuration of the certificates that the server issues itself, or nil if it issues none.
func (o *replicaOptions) certificates() *app.CertificatesConfig {
	if !o.several() && !o.selfManaged {
		return nil
	}
	if o.certificateDir != "" {
		return &app.CertificatesConfig{Serving: true, Dir: o.certificateDir}
	}
	return &app.CertificatesConfig{Serving: o.selfManaged, PodIP: o.podIP, PodName: o.podName, PeerService: o.peerService, Settle: o.settle}
}

// replica returns the configuration of this replica with some components, or nil without peers.
func (o *replicaOptions) replica(components componentList, listener net.Listener) *app.ReplicaConfig {
	if !o.several() {
		return nil
	}
	// validate checks the name where it matters.
	set, _ := o.stateful()
	return &app.ReplicaConfig{
		PodName: o.podName, PodUID: types.UID(o.podUID), PodIP: o.podIP, Listener: listener,
		Group: components.group(), Leads: components.has(componentControllers), ReadOnly: o.certificateDir != "",
		Members: app.MembersConfig{
			StatefulSet: set, Replicas: o.replicas, Service: o.peerService,
			EtcdPeerPort: o.etcdPeerPort, EtcdClientPort: o.etcdClientPort, EventLogPort: o.eventLogPort,
		},
	}
}

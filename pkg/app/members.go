package app

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
)

// maxEventCopies is the largest number of members of the embedded event log that store an event.
const maxEventCopies = 3

// MembersConfig configures the embedded etcd and event log of a StatefulSet whose Pods are members of both.
type MembersConfig struct {
	// StatefulSet is the name of the StatefulSet, Replicas the number of its Pods, Service its headless Service.
	StatefulSet string
	Replicas    int
	Service     string
	// EtcdPeerPort, EtcdClientPort and EventLogPort are the ports for traffic between members.
	EtcdPeerPort, EtcdClientPort, EventLogPort int
}

// members starts this replica's members of the embedded etcd and event log.
type members struct {
	MembersConfig
	podName, podIP string
	// namespace and clusterDomain complete the host names of the Pods.
	namespace, clusterDomain string
}

// hostName returns the DNS name of a Pod.
func (m *members) hostName(pod string) string {
	return pod + "." + m.Service + "." + m.namespace + ".svc." + m.clusterDomain
}

// hostNames returns the DNS names of all Pods.
func (m *members) hostNames() []string {
	names := make([]string, m.Replicas)
	for i := range names {
		names[i] = m.hostName(fmt.Sprintf("%s-%d", m.StatefulSet, i))
	}
	return names
}

// startEtcd starts the member of etcd on a data directory.
func (m *members) startEtcd(ctx context.Context, client kubernetes.Interface, certificates *certs.Manager, dataDir string) (*etcd.Embedded, error) {
	files, err := certificates.WriteEtcdFiles(ctx, filepath.Join(dataDir, "pki"))
	if err != nil {
		return nil, err
	}
	return etcd.StartMember(ctx, etcd.MemberOptions{
		Dir:          dataDir,
		Name:         m.podName,
		PeerAddress:  at(m.hostName(m.podName), m.EtcdPeerPort),
		Listen:       at(m.podIP, m.EtcdPeerPort),
		ListenClient: at(m.podIP, m.EtcdClientPort),
		TLS:          etcd.TLSFiles{CertFile: files.Cert, KeyFile: files.Key, CAFile: files.CA},
		Record:       etcd.NewConfigMapRecord(client, m.namespace),
		Logger:       klog.FromContext(ctx).WithName("etcd"),
	})
}

// joinEventLog configures an event log as a member, with TLS for the connections between members.
func (m *members) joinEventLog(o *eventlog.Options, tls *tls.Config) {
	o.Cluster = &eventlog.Cluster{
		Name:       m.podName,
		ListenHost: m.podIP, ListenPort: m.EventLogPort,
		Advertise: at(m.hostName(m.podName), m.EventLogPort),
		TLS:       tls,
	}
	for _, host := range m.hostNames() {
		o.Cluster.Routes = append(o.Cluster.Routes, at(host, m.EventLogPort))
	}
	o.Replicas = min(m.Replicas, maxEventCopies)
}

func at(host string, port int) string { return net.JoinHostPort(host, strconv.Itoa(port)) }

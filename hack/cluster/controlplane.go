//go:build linux

package main

import (
	"net/netip"
	"strconv"
)

// auditPolicy records writes to the API groups of this project and to ConfigMaps, which benchmarks compare them with, so
// both include the cost of auditing. Without the stage RequestReceived, a request has one event, and a watch a second one.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  resources:
  - group: serving.knative.dev
  - group: eventing.knative.dev
  - group: messaging.knative.dev
  - group: networking.internal.knative.dev
  - group: ""
    resources: [configmaps]
- level: None
`

// controlPlane holds the inputs of the programs' arguments.
type controlPlane struct {
	home          home
	address       netip.Addr // of kube-apiserver
	apiServerPort int
	etcdPort      int // on loopback, gRPC
	etcdHTTPPort  int // on loopback, health and metrics
	services      netip.Prefix
	node          bool // whether there will be one
}

// etcdURL is the URL of etcd for kube-apiserver.
func (c controlPlane) etcdURL() string { return "https://127.0.0.1:" + strconv.Itoa(c.etcdPort) }

// etcdHTTPURL is the URL of etcd's health endpoint.
func (c controlPlane) etcdHTTPURL() string {
	return "https://127.0.0.1:" + strconv.Itoa(c.etcdHTTPPort)
}

// apiServerURL is the URL of kube-apiserver.
func (c controlPlane) apiServerURL() string {
	return "https://" + netip.AddrPortFrom(c.address, uint16(c.apiServerPort)).String()
}

func (c controlPlane) pki(name string) string { return c.home.path("pki", name) }

// etcdArgs returns the arguments of etcd. fsync is enabled, so that benchmarks include the cost of
// durability.
func (c controlPlane) etcdArgs() []string {
	// A single member has no peers to serve, but etcd insists on listening for them.
	const peerURL = "https://127.0.0.1:0"
	return []string{
		"--name=etcd",
		"--data-dir=" + c.home.path("etcd"),
		"--listen-client-urls=" + c.etcdURL(),
		// A port that serves both gRPC and HTTP delays watch events under load.
		"--listen-client-http-urls=" + c.etcdHTTPURL(),
		"--advertise-client-urls=" + c.etcdURL(),
		"--cert-file=" + c.pki("etcd.crt"),
		"--key-file=" + c.pki("etcd.key"),
		"--client-cert-auth",
		"--trusted-ca-file=" + c.pki("etcd-ca.crt"),
		"--listen-peer-urls=" + peerURL,
		"--initial-advertise-peer-urls=" + peerURL,
		"--initial-cluster=etcd=" + peerURL,
		"--peer-cert-file=" + c.pki("etcd.crt"),
		"--peer-key-file=" + c.pki("etcd.key"),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + c.pki("etcd-ca.crt"),
		"--log-level=warn",
	}
}

func (c controlPlane) apiServerArgs() []string {
	args := []string{
		"--bind-address=" + c.address.String(),
		"--advertise-address=" + c.address.String(),
		"--secure-port=" + strconv.Itoa(c.apiServerPort),
		"--tls-cert-file=" + c.pki("kube-apiserver.crt"),
		"--tls-private-key-file=" + c.pki("kube-apiserver.key"),
		"--client-ca-file=" + c.pki("ca.crt"),
		"--etcd-servers=" + c.etcdURL(),
		"--etcd-cafile=" + c.pki("etcd-ca.crt"),
		"--etcd-certfile=" + c.pki("etcd-client.crt"),
		"--etcd-keyfile=" + c.pki("etcd-client.key"),
		"--service-cluster-ip-range=" + c.services.String(),
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",

		"--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=" + c.pki("service-account.pub"),
		"--service-account-signing-key-file=" + c.pki("service-account.key"),

		// Aggregation: aggregated servers authenticate kube-apiserver and read the user of its requests.
		"--requestheader-client-ca-file=" + c.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=" + frontProxyName,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + c.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + c.pki("front-proxy-client.key"),
		// Without kube-proxy the address of a Service does not work: call its endpoints.
		"--enable-aggregator-routing=true",

		"--audit-policy-file=" + c.home.path("audit-policy.yaml"),
		"--audit-log-path=" + c.home.path("audit.log"),
		// No rotation: tests read the one file.
		"--audit-log-maxsize=0",
	}
	if c.node {
		args = append(args,
			"--kubelet-preferred-address-types=InternalIP",
			"--kubelet-certificate-authority="+c.pki("ca.crt"),
			"--kubelet-client-certificate="+c.pki("kubelet-client.crt"),
			"--kubelet-client-key="+c.pki("kubelet-client.key"),
		)
	}
	return args
}

func (c controlPlane) controllerManagerArgs() []string {
	kubeconfig := c.home.path("controller-manager.kubeconfig")
	return []string{
		"--kubeconfig=" + kubeconfig,
		"--service-account-private-key-file=" + c.pki("service-account.key"),
		"--root-ca-file=" + c.pki("ca.crt"),
		"--cluster-signing-cert-file=" + c.pki("ca.crt"),
		"--cluster-signing-key-file=" + c.pki("ca.key"),
		// As in real clusters, each controller has only the permissions of its own role.
		"--use-service-account-credentials=true",
		"--leader-elect=false",
		// No client connects to it; without a port, no port can collide.
		"--secure-port=0",
		// The default is a directory of the machine, which would be created if it does not exist.
		"--flex-volume-plugin-dir=" + c.home.path("flexvolume"),
		// For tests of quotas after deletions. The garbage collector and the quota controller discover new API groups every 30
		// s. No flag changes that.
		"--resource-quota-sync-period=5s",
		// The only node must not be marked unreachable while this API server is stopped: its Pods continue.
		"--node-monitor-grace-period=3m",
		// The defaults (20 per second, bursts of 30) make namespaces with many objects slow to delete.
		"--kube-api-qps=200",
		"--kube-api-burst=400",
	}
}

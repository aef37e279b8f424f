package main

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/util/validation"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/app"
)

// aggregatedOptions are the flags of a server behind kube-aggregator.
type aggregatedOptions struct {
	api             *apiserver.Options
	components      componentList
	systemNamespace string
	clusterDomain   string
	gateway         gatewayOptions
	broker          brokerOptions
	memory          quantity
	crossNamespace  bool
	destinations    destinationOptions
	replica         replicaOptions
}

// gatewayOptions are the flags of the gateway in a cluster.
type gatewayOptions struct {
	port, tlsPort, internalPort, drainPort int
	accessLog                              string
	http1FastPath, http3                   bool
	proxies                                prefixList
	proxyProtocol                          bool
}

func newAggregatedOptions() *aggregatedOptions {
	broker := newBrokerOptions()
	broker.port = 8082
	api := apiserver.NewOptions()
	// These limits give tenants about one seat of priority and fairness per processor. With more seats, concurrent requests
	// would wait for processors instead of in the queue of their tenant.
	processors := runtime.GOMAXPROCS(0)
	api.Run.MaxRequestsInFlight, api.Run.MaxMutatingRequestsInFlight = 120*processors, 80*processors
	return &aggregatedOptions{
		api:             api,
		components:      allComponents,
		systemNamespace: app.SystemNamespace,
		clusterDomain:   defaultClusterDomain,
		gateway:         gatewayOptions{port: defaultGatewayPort, tlsPort: defaultGatewayTLSPort, internalPort: 8081, drainPort: 8083, http1FastPath: true},
		broker:          broker,
		replica:         newReplicaOptions(),
	}
}

func (o *aggregatedOptions) addFlags(fss *cliflag.NamedFlagSets) {
	generic := fss.FlagSet(genericSection)
	generic.StringSliceVar((*[]string)(&o.components), "components", o.components,
		"Components to run: apiserver, controllers (of Serving), gateway (of Services) and broker (of Eventing, with its controllers). "+
			"Without apiserver, components reach the API through the host cluster.")
	generic.StringVar(&o.systemNamespace, "system-namespace", o.systemNamespace,
		"Namespace of this server, its Services and the ConfigMaps of its settings.")
	addClusterDomainFlag(generic, &o.clusterDomain)
	addMemoryFlag(generic, &o.memory)
	o.api.AddFlags(fss)

	serving := fss.FlagSet(servingSection)
	serving.IntVar(&o.gateway.port, "gateway-port", o.gateway.port, "Port of the gateway for requests from outside the cluster. 0 selects a free port.")
	serving.IntVar(&o.gateway.tlsPort, "gateway-tls-port", o.gateway.tlsPort,
		"Port of the gateway for HTTPS requests from outside the cluster. 0 selects a free port, -1 disables HTTPS.")
	serving.IntVar(&o.gateway.internalPort, "gateway-internal-port", o.gateway.internalPort,
		"Port of the gateway for requests from Pods of the cluster, the only one that serves cluster-local host names. 0 selects a free port.")
	serving.IntVar(&o.gateway.drainPort, "drain-port", o.gateway.drainPort,
		"Port of the gateway for the preStop hooks of Pods, which kubelets call through port 8083 of the Service gateway-internal. 0 selects a free port.")
	serving.StringVar(&o.gateway.accessLog, "access-log", "", `Path of the JSON access log of requests to Services; "-" writes to stderr. Empty disables it.`)
	addHTTP3Flag(serving, &o.gateway.http3)
	addFastPathFlag(serving, &o.gateway.http1FastPath)
	addTrustedProxiesFlag(serving, &o.gateway.proxies)
	serving.BoolVar(&o.gateway.proxyProtocol, "proxy-protocol", false,
		"If true, connections from --trusted-proxies to --gateway-port and --gateway-tls-port begin with a header of the PROXY protocol, version 1 or 2, "+
			"and are closed otherwise. The client is the one that the header names. Other peers connect without a header.")

	eventing := fss.FlagSet(eventingSection)
	o.broker.addFlags(eventing, "Port of the broker for events to Brokers and Channels. 0 selects a free port.",
		"Port of the broker for events over HTTPS, if the server issues its own certificates. 0 selects a free port, -1 disables HTTPS.")

	destinations := fss.FlagSet(destinationSection)
	destinations.BoolVar(&o.crossNamespace, "allow-cross-namespace-destinations", false,
		"If true, Triggers, Subscriptions, Brokers and Channels may send events to all other namespaces, by reference or by the DNS name of a Service. "+
			"If false, the target must allow it with the annotation eventing.knative.dev/allow-from.")
	o.destinations.addFlags(destinations, "loopback, link-local, multicast and reserved addresses, metadata services, the address of the Kubernetes API, "+
		"and the addresses of the node and of all replicas of this server")

	o.replica.addFlags(fss.FlagSet(replicaSection))
}

// completedAggregated are aggregatedOptions with all values that depend on other options.
type completedAggregated struct {
	*aggregatedOptions
	server apiserver.CompletedOptions
}

// complete implements serverOptions.
func (o *aggregatedOptions) complete() server {
	completed, api := *o, *o.api
	api.NoAPI = !o.components.has(componentAPIServer)
	api.SystemNamespace = o.systemNamespace
	return &completedAggregated{&completed, api.Complete()}
}

// validate implements server.
func (o *completedAggregated) validate() error {
	errs := []error{o.server.Validate(), o.components.validate(), validateClusterDomain(o.clusterDomain), o.broker.validate(), o.destinations.validate(), o.replica.validate()}
	if faults := validation.IsDNS1123Label(o.systemNamespace); len(faults) > 0 {
		errs = append(errs, fmt.Errorf("--system-namespace %q: %s", o.systemNamespace, strings.Join(faults, "; ")))
	}
	errs = append(errs, validatePort("gateway-port", o.gateway.port, 0), validatePort("gateway-tls-port", o.gateway.tlsPort, -1), validatePort("gateway-internal-port", o.gateway.internalPort, 0),
		validatePort("drain-port", o.gateway.drainPort, 0), validateHTTP3(o.gateway.http3, o.gateway.tlsPort))
	if o.gateway.proxyProtocol && len(o.gateway.proxies) == 0 {
		errs = append(errs, errors.New("--proxy-protocol requires --trusted-proxies"))
	}
	if o.components.has(componentBroker) && o.broker.log.URL == "" && o.api.DataDir == "" {
		errs = append(errs, errors.New("one of --nats-url and --data-dir must be set to store events"))
	}
	if o.replica.certificateDir != "" && (o.components.group() != componentGateway || o.replica.podUID == "") {
		errs = append(errs, errors.New("--gateway-certificate-dir requires --components=gateway and --pod-uid"))
	}
	if o.replica.replicas > 1 && (o.embeddedEtcd() || o.embeddedEventLog()) {
		if _, err := o.replica.stateful(); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// embeddedEtcd reports whether this server is a member of its own etcd.
func (o *aggregatedOptions) embeddedEtcd() bool {
	return o.components.has(componentAPIServer) && len(o.api.Recommended.Etcd.StorageConfig.Transport.ServerList) == 0
}

// embeddedEventLog reports whether this server is a member of its own event log.
func (o *aggregatedOptions) embeddedEventLog() bool {
	return o.components.has(componentBroker) && o.broker.log.URL == ""
}

// listeners are the ports of a server except the port of the API. Ports of components that do not run are nil.
type listeners struct {
	public, tls, internal, drain, broker, brokerTLS, peer net.Listener
	http3                                                 net.PacketConn
}

func (l *listeners) close() {
	for _, listener := range []net.Listener{l.public, l.tls, l.internal, l.drain, l.broker, l.brokerTLS, l.peer} {
		if listener != nil {
			listener.Close()
		}
	}
	if l.http3 != nil {
		l.http3.Close()
	}
}

// listen opens all ports.
func (o *aggregatedOptions) listen(command *cobra.Command) (_ *listeners, err error) {
	l := &listeners{}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	for _, p := range []struct {
		to   *net.Listener
		has  bool
		flag string
		port int
	}{
		{&l.public, o.components.has(componentGateway), "gateway-port", o.gateway.port},
		{&l.tls, o.components.has(componentGateway) && o.gateway.tlsPort >= 0, "gateway-tls-port", o.gateway.tlsPort},
		{&l.internal, o.components.has(componentGateway), "gateway-internal-port", o.gateway.internalPort},
		{&l.drain, o.components.has(componentGateway), "drain-port", o.gateway.drainPort},
		{&l.broker, o.components.has(componentBroker), "broker-port", o.broker.port},
		{&l.brokerTLS, o.components.has(componentBroker) && o.broker.tlsPort >= 0 && o.replica.certificates() != nil, "broker-tls-port", o.broker.tlsPort},
		{&l.peer, o.replica.several(), "peer-port", o.replica.peerPort},
	} {
		if !p.has {
			continue
		}
		if *p.to, err = listen(command.Context(), o.api.Recommended.SecureServing.BindAddress, p.flag, p.port); err != nil {
			return nil, err
		}
	}
	if l.tls != nil && o.gateway.http3 {
		if l.http3, err = listenHTTP3(command.Context(), l.tls); err != nil {
			return nil, err
		}
	}
	return l, nil
}

// run implements server.
func (o *completedAggregated) run(command *cobra.Command) error {
	limitMemory(command.Context())
	// Ports are opened before the server starts, so that a port in use is reported at once.
	ports, err := o.listen(command)
	if err != nil {
		return err
	}
	defer ports.close()
	config, err := o.config(ports)
	if err != nil {
		return err
	}
	return config.Run(command.Context())
}

// config returns the configuration of the server with these ports.
func (o *completedAggregated) config(ports *listeners) (*app.AggregatedConfig, error) {
	// The flag belongs to the API server, which reads the file for its own spans.
	tracing, err := readTracing(o.api.Recommended.Traces.ConfigFile)
	if err != nil {
		return nil, err
	}
	config := &app.AggregatedConfig{
		API:                 o.server,
		Tracing:             tracing,
		ClusterDomain:       o.clusterDomain,
		Certificates:        o.replica.certificates(),
		Replica:             o.replica.replica(o.components, ports.peer),
		MemoryBudget:        int64(o.memory),
		AllowCrossNamespace: o.crossNamespace,
		Destinations:        o.destinations.config(),
	}
	config.Destinations.Own = o.replica.ownAddresses()
	if o.components.has(componentControllers) || o.components.has(componentGateway) {
		config.Serving = &app.ServingConfig{
			Public: ports.public, TLS: ports.tls, HTTP3: ports.http3, Internal: ports.internal, Drain: ports.drain, AccessLog: o.gateway.accessLog, StandardOnly: !o.gateway.http1FastPath,
			Proxies: o.gateway.proxies, ProxyProtocol: o.gateway.proxyProtocol,
		}
	}
	if o.components.has(componentBroker) {
		config.Eventing = o.broker.config(ports.broker, ports.brokerTLS)
	}
	return config, nil
}

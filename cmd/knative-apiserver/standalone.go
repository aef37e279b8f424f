package main

import (
	"errors"
	"net"
	"path/filepath"
	"slices"

	"github.com/spf13/cobra"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/app"
)

// The default ports of gateway and broker.
const (
	defaultGatewayPort    = 8080
	defaultGatewayTLSPort = 8445
	defaultBrokerPort     = 8081
	defaultBrokerTLSPort  = 8446
	defaultConsolePort    = 8090
)

// standaloneOptions are the flags of the standalone command.
type standaloneOptions struct {
	api           *apiserver.StandaloneOptions
	components    componentList
	gatewayPort   int
	tlsPort       int
	consolePort   int
	configDir     string
	clusterDomain string
	accessLog     string
	http1FastPath bool
	http3         bool
	proxies       prefixList
	broker        brokerOptions
	memory        quantity
	destination   destinationOptions
	tracingFile   string
}

func newStandaloneOptions() *standaloneOptions {
	return &standaloneOptions{
		api:           apiserver.NewStandaloneOptions(),
		components:    slices.Clone(allComponents),
		gatewayPort:   defaultGatewayPort,
		tlsPort:       defaultGatewayTLSPort,
		consolePort:   defaultConsolePort,
		clusterDomain: defaultClusterDomain,
		http1FastPath: true,
		broker:        newBrokerOptions(),
	}
}

func (o *standaloneOptions) addFlags(fss *cliflag.NamedFlagSets) {
	generic := fss.FlagSet(genericSection)
	generic.StringSliceVar((*[]string)(&o.components), "components", o.components,
		"Components to run: apiserver alone, or with controllers and at least one of gateway (Serving) and broker (Eventing).")
	generic.StringVar(&o.configDir, "config-dir", "",
		"Directory of YAML files with the ConfigMaps config-autoscaler, config-br-defaults, config-defaults, config-domain, config-features, "+
			"config-gc, config-network, config-observability and default-ch-webhook. Changes take effect at once. Empty reads the ConfigMaps of namespace knative-system.")
	generic.IntVar(&o.consolePort, "console-port", o.consolePort,
		"Port of 127.0.0.1 for the web pages of the console, with the permissions of the kubeconfig. Its address, with a token, is printed at the start. "+
			"0 selects a free port, -1 disables it. If the default port is in use, a free port is selected.")
	addClusterDomainFlag(generic, &o.clusterDomain)
	addMemoryFlag(generic, &o.memory)
	o.api.AddFlags(fss)

	serving := fss.FlagSet(servingSection)
	serving.IntVar(&o.gatewayPort, "gateway-port", o.gatewayPort,
		"Port of the gateway for requests to Services. 0 selects a free port. If the default port is in use, a free port is selected.")
	serving.IntVar(&o.tlsPort, "gateway-tls-port", o.tlsPort,
		"Port of the gateway for HTTPS requests to Services. 0 selects a free port, -1 disables HTTPS. If the default port is in use, a free port is selected.")
	serving.StringVar(&o.accessLog, "access-log", "",
		`Path of the JSON access log of requests to Services; "-" writes to stderr. Empty writes to access.log in the data directory.`)
	addHTTP3Flag(serving, &o.http3)
	addFastPathFlag(serving, &o.http1FastPath)
	addTrustedProxiesFlag(serving, &o.proxies)

	eventing := fss.FlagSet(eventingSection)
	o.broker.addFlags(eventing, "Port of the broker for events to Brokers and Channels. 0 selects a free port. If the default port is in use, a free port is selected.",
		"Port of the broker for events over HTTPS. 0 selects a free port, -1 disables HTTPS. If the default port is in use, a free port is selected.")
	o.destination.addFlags(fss.FlagSet(destinationSection),
		"link-local, multicast and reserved addresses, metadata services, and addresses of this machine except loopback")
	fss.FlagSet("traces").StringVar(&o.tracingFile, "tracing-config-file", "",
		"Path of a TracingConfiguration (apiserver.config.k8s.io/v1) for the spans of requests, events and deliveries while tracing-protocol of config-observability is none. "+
			"Empty exports none then.")
}

// completedStandalone are standaloneOptions with all values that depend on other options.
type completedStandalone struct{ *standaloneOptions }

// complete implements serverOptions.
func (o *standaloneOptions) complete() server {
	completed, api := *o, *o.api
	completed.api = &api
	if completed.accessLog == "" {
		completed.accessLog = filepath.Join(api.DataDir, "access.log")
	}
	return &completedStandalone{&completed}
}

// validate implements server.
func (o *completedStandalone) validate() error {
	errs := []error{o.api.Validate(), o.broker.validate(), o.destination.validate(), o.components.validate(), validateClusterDomain(o.clusterDomain)}
	if !o.components.has(componentAPIServer) {
		errs = append(errs, errors.New("--components must contain apiserver"))
	}
	if o.components.has(componentControllers) != (o.components.has(componentGateway) || o.components.has(componentBroker)) {
		errs = append(errs, errors.New("--components must contain controllers with gateway or broker, or none of them"))
	}
	return errors.Join(append(errs, validatePort("gateway-port", o.gatewayPort, 0), validatePort("gateway-tls-port", o.tlsPort, -1), validatePort("console-port", o.consolePort, -1),
		validateHTTP3(o.http3, o.tlsPort))...)
}

func newStandaloneCommand() *cobra.Command {
	return newServerCommand(&cobra.Command{
		Use:   "standalone",
		Short: "Run the server on this machine without a cluster",
		Long: "Runs the API server with an embedded etcd, and Serving and Eventing with the backends of Revisions as processes of this machine. " +
			"No cluster is required.",
	}, newStandaloneOptions())
}

// run implements server.
func (o *completedStandalone) run(command *cobra.Command) error {
	limitMemory(command.Context())
	tracing, err := readTracing(o.tracingFile)
	if err != nil {
		return err
	}
	config := app.StandaloneConfig{
		API:           o.api,
		Tracing:       tracing,
		ConfigDir:     o.configDir,
		ClusterDomain: o.clusterDomain,
		AccessLog:     o.accessLog,
		StandardOnly:  !o.http1FastPath,
		Proxies:       o.proxies,
		MemoryBudget:  int64(o.memory),
		Destinations:  o.destination.config(),
	}
	// Ports are opened before the server starts, so that a port in use is reported at once.
	if o.components.has(componentGateway) {
		listener, err := o.listen(command, "gateway-port", o.gatewayPort)
		if err != nil {
			return err
		}
		defer listener.Close()
		config.Gateway = listener
	}
	if o.components.has(componentGateway) && o.tlsPort >= 0 {
		listener, err := o.listen(command, "gateway-tls-port", o.tlsPort)
		if err != nil {
			return err
		}
		defer listener.Close()
		config.GatewayTLS = listener
		if o.http3 {
			socket, err := listenHTTP3(command.Context(), listener)
			if err != nil {
				return err
			}
			defer socket.Close()
			config.GatewayHTTP3 = socket
		}
	}
	if o.components.has(componentBroker) {
		listener, err := o.listen(command, "broker-port", o.broker.port)
		if err != nil {
			return err
		}
		defer listener.Close()
		var tls net.Listener
		if o.broker.tlsPort >= 0 {
			if tls, err = o.listen(command, "broker-tls-port", o.broker.tlsPort); err != nil {
				return err
			}
			defer tls.Close()
		}
		config.Eventing = o.broker.config(listener, tls)
	}
	if o.consolePort >= 0 && o.components.has(componentControllers) {
		listener, err := o.listenAt(command, net.IPv4(127, 0, 0, 1), "console-port", o.consolePort)
		if err != nil {
			return err
		}
		defer listener.Close()
		config.Console = listener
	}
	return config.Run(command.Context(), command.OutOrStdout())
}

// listen opens the port of a flag. If the default port is in use, it opens a free port.
func (o *completedStandalone) listen(command *cobra.Command, flag string, port int) (net.Listener, error) {
	return o.listenAt(command, o.api.BindHost, flag, port)
}

// listenAt is listen with another address than the API has.
func (o *completedStandalone) listenAt(command *cobra.Command, host net.IP, flag string, port int) (net.Listener, error) {
	ctx := command.Context()
	listener, err := listen(ctx, host, flag, port)
	if err != nil && !command.Flags().Changed(flag) {
		klog.FromContext(ctx).Info("Default port is in use; selecting a free port", "flag", "--"+flag, "port", port)
		return listen(ctx, host, flag, 0)
	}
	return listener, err
}

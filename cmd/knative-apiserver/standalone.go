package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/components"
)

// The components of the server, as --components names them.
const (
	componentAPIServer   = "apiserver"
	componentControllers = "controllers"
	componentGateway     = "gateway"
)

var standaloneComponents = []string{componentAPIServer, componentControllers, componentGateway}

// defaultGatewayPort is the port of the gateway where no flag names one.
const defaultGatewayPort = 8080

// standaloneOptions are the flags of the standalone command.
type standaloneOptions struct {
	api         *apiserver.StandaloneOptions
	components  []string
	gatewayPort int
	configDir   string
	accessLog   string
}

func newStandaloneOptions() *standaloneOptions {
	return &standaloneOptions{
		api:         apiserver.NewStandaloneOptions(),
		components:  slices.Clone(standaloneComponents),
		gatewayPort: defaultGatewayPort,
	}
}

func (o *standaloneOptions) addFlags(flags *pflag.FlagSet) {
	o.api.AddFlags(flags)
	flags.StringSliceVar(&o.components, "components", o.components,
		"What to run: apiserver alone, or also controllers and gateway, which need each other.")
	flags.IntVar(&o.gatewayPort, "gateway-port", o.gatewayPort,
		"Port on which requests to Services arrive; 0 picks a free one. The default port gives way to a free one where it is taken.")
	flags.StringVar(&o.configDir, "config-dir", "",
		"Directory with YAML files of the ConfigMaps config-autoscaler, config-defaults, config-domain, config-features, config-gc and "+
			"config-network. Changes take effect at once. None: all defaults.")
	flags.StringVar(&o.accessLog, "access-log", "",
		`File that gets a line of JSON for each request to a Service, "-" for standard error. None: access.log in the data directory.`)
}

func (o *standaloneOptions) validate() error {
	errs := []error{o.api.Validate()}
	if o.gatewayPort < 0 || o.gatewayPort > 65535 {
		errs = append(errs, fmt.Errorf("--gateway-port %d must be from 0 to 65535", o.gatewayPort))
	}
	for _, component := range o.components {
		if !slices.Contains(standaloneComponents, component) {
			errs = append(errs, fmt.Errorf("--components %q must be among %s", component, strings.Join(standaloneComponents, ", ")))
		}
	}
	if !o.runs(componentAPIServer) {
		errs = append(errs, errors.New("--components must contain apiserver"))
	}
	if o.runs(componentControllers) != o.runs(componentGateway) {
		errs = append(errs, errors.New("--components must contain controllers and gateway, or neither"))
	}
	return errors.Join(errs...)
}

func (o *standaloneOptions) runs(component string) bool {
	return slices.Contains(o.components, component)
}

func newStandaloneCommand() *cobra.Command {
	options := newStandaloneOptions()
	logging := logs.NewOptions()
	command := &cobra.Command{
		Use:          "standalone",
		Short:        "Serve on this machine, with an embedded etcd, revisions as processes, and no cluster",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			if err := options.validate(); err != nil {
				return err
			}
			return options.run(command)
		},
	}
	options.addFlags(command.Flags())
	logsapi.AddFlags(logging, command.Flags())
	return command
}

func (o *standaloneOptions) run(command *cobra.Command) error {
	ctx, stop := context.WithCancel(command.Context())
	defer stop()
	if !o.runs(componentGateway) {
		return o.api.RunServer(ctx, command.OutOrStdout())
	}
	// Opened before anything else, so that a port that is taken is told at once.
	listener, err := o.listen(ctx, command.Flags().Changed("gateway-port"))
	if err != nil {
		return err
	}
	defer listener.Close()
	serving, err := components.NewStandalone(ctx, components.StandaloneOptions{
		DataDir:   o.api.DataDir,
		ConfigDir: o.configDir,
		AccessLog: o.accessLogFile(),
		Listener:  listener,
		Stop:      stop,
	})
	if err != nil {
		return err
	}
	o.api.Settings = serving.APISettings
	o.api.Start = func(ctx context.Context, server *apiserver.Server) ([]string, error) {
		if err := serving.Start(ctx, server.ControllersConfig()); err != nil {
			return nil, err
		}
		return []string{"gateway " + serving.URL()}, nil
	}
	return errors.Join(o.api.RunServer(ctx, command.OutOrStdout()), serving.Wait())
}

// accessLogFile returns the path of the access log, or "-".
func (o *standaloneOptions) accessLogFile() string {
	if o.accessLog == "" {
		return filepath.Join(o.api.DataDir, "access.log")
	}
	return o.accessLog
}

// listen opens the gateway's port. One that was asked for must be free.
func (o *standaloneOptions) listen(ctx context.Context, asked bool) (net.Listener, error) {
	var config net.ListenConfig
	host := o.api.BindHost.String()
	listener, err := config.Listen(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(o.gatewayPort)))
	if err != nil && !asked {
		klog.FromContext(ctx).Info("Another program has the gateway's port, taking a free one", "port", o.gatewayPort)
		listener, err = config.Listen(ctx, "tcp", net.JoinHostPort(host, "0"))
	}
	if err != nil {
		return nil, fmt.Errorf("opening --gateway-port %d: %w", o.gatewayPort, err)
	}
	return listener, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/components"
)

// aggregatedOptions are the flags of a server behind kube-aggregator.
type aggregatedOptions struct {
	api             *apiserver.Options
	components      componentList
	systemNamespace string
	broker          brokerOptions
}

func newAggregatedOptions() *aggregatedOptions {
	return &aggregatedOptions{
		api:             apiserver.NewOptions(),
		components:      componentList{componentAPIServer},
		systemNamespace: components.SystemNamespace,
		broker:          newBrokerOptions(),
	}
}

func (o *aggregatedOptions) addFlags(flags *pflag.FlagSet) {
	o.api.AddFlags(flags)
	flags.StringSliceVar((*[]string)(&o.components), "components", o.components,
		"What to run: apiserver alone, or also controllers and broker (Eventing).")
	flags.StringVar(&o.systemNamespace, "system-namespace", o.systemNamespace,
		"Namespace of the Service broker-ingress, by which events reach Brokers.")
	o.broker.addFlags(flags)
}

func (o *aggregatedOptions) validate() error {
	errs := []error{o.api.Validate(), o.components.validate(), o.broker.validate()}
	if o.components.has(componentGateway) {
		errs = append(errs, errors.New("--components may not contain gateway in a cluster: it serves revisions that run as processes, by the standalone command alone"))
	}
	if faults := validation.IsDNS1123Label(o.systemNamespace); len(faults) > 0 {
		errs = append(errs, fmt.Errorf("--system-namespace %q: %s", o.systemNamespace, strings.Join(faults, "; ")))
	}
	if o.components.has(componentBroker) && o.broker.log.URL == "" && o.api.DataDir == "" {
		errs = append(errs, errors.New("one of --nats-url and --data-dir must be given to keep events in"))
	}
	return errors.Join(errs...)
}

func (o *aggregatedOptions) run(command *cobra.Command) error {
	ctx, stop := context.WithCancel(command.Context())
	defer stop()
	if !o.components.has(componentBroker) {
		return o.api.RunServer(ctx)
	}
	// The API server has the flag already.
	o.broker.tracingConfig = o.api.Recommended.Traces.ConfigFile
	broker, err := o.broker.config(ctx)
	if err != nil {
		return err
	}
	// Opened before anything else, so that a port that is taken is told at once.
	if broker.Listener, err = listen(ctx, o.api.Recommended.SecureServing.BindAddress, "broker-port", o.broker.port); err != nil {
		return err
	}
	defer broker.Listener.Close()
	knative := components.NewAggregated(components.AggregatedOptions{
		DataDir:         o.api.DataDir,
		SystemNamespace: o.systemNamespace,
		Broker:          broker,
		Stop:            stop,
	})
	o.api.Start = func(ctx context.Context, server *apiserver.Server, host *rest.Config) error {
		return knative.Start(ctx, server.ControllersConfig(), host)
	}
	return errors.Join(o.api.RunServer(ctx), knative.Wait())
}

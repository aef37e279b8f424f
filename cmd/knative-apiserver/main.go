// Command knative-apiserver serves Knative Serving and Eventing as native Kubernetes API groups.
package main

import (
	"os"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/version/verflag"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/host"
	"github.com/knative-apiserver/knative-apiserver/pkg/timerslack"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
)

func main() {
	// Returns unless this process was started to run the program of a container.
	spawn.Helper()
	// Before signals are handled: the new execution would miss one that arrives now.
	if err := timerslack.Extend(); err != nil {
		klog.Background().Info("Timers are not delayed: an idle server needs more processor time", "reason", err.Error())
	}
	tuneGC()
	command := newCommand()
	command.SetContext(host.WithoutBodies(genericapiserver.SetupSignalContext()))
	os.Exit(cli.Run(command))
}

func newCommand() *cobra.Command {
	command := newServerCommand(&cobra.Command{
		Use:   "knative-apiserver",
		Short: "API server for Knative Serving and Eventing",
		Long: "Serves the API groups serving.knative.dev, eventing.knative.dev, messaging.knative.dev and networking.internal.knative.dev behind the kube-aggregator " +
			"of a host cluster, and runs Knative Serving and Eventing there. The standalone command requires no cluster.",
	}, newAggregatedOptions())
	command.AddCommand(newStandaloneCommand(), newSnapshotCommand(), newEventsCommand())
	return command
}

// serverOptions are the flags of a command that runs a server.
type serverOptions interface {
	addFlags(*cliflag.NamedFlagSets)
	// complete returns a copy of the options with all values that depend on other options.
	complete() server
}

// server runs with completed options.
type server interface {
	// validate returns all errors of the options.
	validate() error
	// run runs the server until the context of the command ends.
	run(*cobra.Command) error
}

// newServerCommand returns a command that runs a server, with the flags of its options and of logging.
func newServerCommand(command *cobra.Command, options serverOptions) *cobra.Command {
	logging := logs.NewOptions()
	command.Args, command.SilenceUsage = cobra.NoArgs, true
	command.RunE = func(command *cobra.Command, _ []string) error {
		verflag.PrintAndExitIfRequested()
		if err := logsapi.ValidateAndApply(logging, nil); err != nil {
			return err
		}
		server := options.complete()
		if err := server.validate(); err != nil {
			return err
		}
		return server.run(command)
	}
	sections := newSections()
	options.addFlags(&sections)
	setFlags(command, sections, logging)
	return command
}

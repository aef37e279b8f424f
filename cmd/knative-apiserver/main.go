// Command knative-apiserver serves Knative Serving and Eventing as native Kubernetes API groups.
package main

import (
	"os"

	"github.com/spf13/cobra"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/version/verflag"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
)

func main() {
	// Returns unless this process was started to run the program of a container.
	spawn.Helper()
	tuneGC()
	command := newCommand()
	command.SetContext(genericapiserver.SetupSignalContext())
	os.Exit(cli.Run(command))
}

func newCommand() *cobra.Command {
	options := newAggregatedOptions()
	logging := logs.NewOptions()
	command := &cobra.Command{
		Use:   "knative-apiserver",
		Short: "API server for Knative Serving and Eventing",
		Long: "Serves the API groups serving.knative.dev, eventing.knative.dev and messaging.knative.dev behind the kube-aggregator " +
			"of a host cluster, and runs Knative Serving and Eventing there. The standalone command requires no cluster.",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			verflag.PrintAndExitIfRequested()
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			completed := options.complete()
			if err := completed.validate(); err != nil {
				return err
			}
			return completed.run(command)
		},
	}
	command.AddCommand(newStandaloneCommand(), newSnapshotCommand(), newEventsCommand())
	sections := newSections()
	options.addFlags(&sections)
	setFlags(command, sections, logging)
	return command
}

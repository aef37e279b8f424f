package main

import (
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/app"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/backup"
)

// newEventsCommand returns the commands that maintain the embedded event log.
func newEventsCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "events",
		Short: "Back up and restore the undelivered events in the embedded event log",
		Args:  cobra.NoArgs,
	}
	dataDir := command.PersistentFlags().String("data-dir", apiserver.NewOptions().DataDir, "Directory of the server's data.")
	connect := func(command *cobra.Command) (*backup.Remote, error) {
		return backup.Connect(command.Context(), app.EventLogDir(*dataDir))
	}
	command.AddCommand(
		&cobra.Command{
			Use:   "save [FILE | -]",
			Short: "Write all undelivered events of the running server to a file, or to standard output",
			Long: "Writes the events of all Brokers and Channels that are not delivered to all subscribers, including events of other replicas.\n" +
				"Run it where the server runs:\n" +
				"kubectl -n knative-system exec knative-apiserver-0 -- /knative-apiserver events save > events.json",
			Args:         cobra.MaximumNArgs(1),
			SilenceUsage: true,
			RunE: func(command *cobra.Command, args []string) error {
				running, err := connect(command)
				if err != nil {
					return err
				}
				return saveTo(command, args, func(to io.Writer) error { return running.Backup(command.Context(), to) })
			},
		},
		&cobra.Command{
			Use:   "restore {FILE | -}",
			Short: "Add the events that save wrote to a file, or standard input, to the running server",
			Long: "Adds the events to the Brokers and Channels that they were saved from. Restore the objects first, from a snapshot: it does\n" +
				"not matter how often they were restored. Events of objects that do not exist are skipped, and reported as an error at\n" +
				"the end. Events that were delivered since they were saved are delivered again.",
			Args:         cobra.ExactArgs(1),
			SilenceUsage: true,
			RunE: func(command *cobra.Command, args []string) error {
				running, err := connect(command)
				if err != nil {
					return err
				}
				if args[0] == standardStream {
					return running.Restore(command.Context(), command.InOrStdin())
				}
				file, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer file.Close()
				return running.Restore(command.Context(), file)
			},
		},
	)
	return command
}

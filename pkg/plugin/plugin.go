// Package plugin implements kubectl knative: commands that read the API of a server with the kubeconfig and the permissions of the user.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
)

// Streams are the outputs of a command.
type Streams struct{ Out, Err io.Writer }

// environment is what all commands share.
type environment struct {
	Streams
	*kubeconfig
	clock clock.Clock
}

// Run executes the command line args, without the name of the program, and returns the exit code: 1 after an error, which it prints.
func Run(ctx context.Context, streams Streams, args []string) int {
	command := newCommand(&environment{Streams: streams, kubeconfig: newKubeconfig(), clock: clock.RealClock{}}) //nolint:contextcheck,nolintlint // each command gets the context
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(streams.Err, message(err))
	return 1
}

// message returns an error as kubectl prints it.
func message(err error) string {
	var status apierrors.APIStatus
	if errors.As(err, &status) {
		return fmt.Sprintf("Error from server (%s): %s", apierrors.ReasonForError(err), err)
	}
	return "error: " + err.Error()
}

func newCommand(e *environment) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-knative",
		Short: "Answers questions about Services, Brokers and events",
		Long: "Answers questions about the Services, Brokers, Channels and events of a server, with the permissions of the user.\n\n" +
			"The page docs/answers.md lists the questions.",
		Annotations:  map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl knative"},
		SilenceUsage: true, SilenceErrors: true,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetOut(e.Out)
	root.SetErr(e.Err)
	e.addFlags(root)
	root.AddCommand(newTraceCommand(e), newExplainCommand(e), newLogsCommand(e), newTopCommand(e), newGraphCommand(e), newConsoleCommand(e),
		newTailCommand(e), newDeadLettersCommand(e), newRedriveCommand(e), newReplayCommand(e), newMatchCommand(e))
	return root
}

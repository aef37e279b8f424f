package main

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/version/verflag"
)

// The names of the flag sections that this package fills.
const (
	genericSection     = "generic"
	servingSection     = "serving"
	eventingSection    = "eventing"
	destinationSection = "destination"
	replicaSection     = "replica"
)

// newSections returns empty flag sections in the order of --help: the sections of this server, then the sections of
// kube-apiserver in its order.
func newSections() cliflag.NamedFlagSets {
	fss := cliflag.NamedFlagSets{}
	for _, name := range []string{
		genericSection, servingSection, eventingSection, destinationSection, replicaSection,
		"etcd", "secure serving", "auditing", "features", "authentication", "authorization", "egress selector", "admission", "logs", "traces",
	} {
		fss.FlagSet(name)
	}
	return fss
}

// setFlags registers the flags of the sections, of logging and --version with a command, whose help prints them by section.
// The help of subcommands is unchanged.
func setFlags(command *cobra.Command, fss cliflag.NamedFlagSets, logging *logsapi.LoggingConfiguration) {
	logsapi.AddFlags(logging, fss.FlagSet("logs"))
	verflag.AddFlags(fss.FlagSet("global"))
	globalflag.AddGlobalFlags(fss.FlagSet("global"), command.Name(), logs.SkipLoggingConfigurationFlags())
	for _, name := range fss.Order {
		command.Flags().AddFlagSet(fss.FlagSets[name])
	}
	help, usage := command.HelpFunc(), command.UsageFunc()
	command.SetHelpFunc(func(called *cobra.Command, args []string) {
		if called != command {
			help(called, args)
			return
		}
		fmt.Fprintf(command.OutOrStdout(), "%s\n\n", command.Long)
		printUsage(command.OutOrStdout(), columns(command.OutOrStdout()), command, fss)
	})
	command.SetUsageFunc(func(called *cobra.Command) error {
		if called != command {
			return usage(called)
		}
		printUsage(command.OutOrStderr(), columns(command.OutOrStderr()), command, fss)
		return nil
	})
}

// printUsage prints the subcommands of a command and its flags by section, wrapped at a number of columns unless the number is 0.
func printUsage(to io.Writer, columns int, command *cobra.Command, fss cliflag.NamedFlagSets) {
	fmt.Fprintf(to, "Usage:\n  %s\n", command.UseLine())
	if command.HasAvailableSubCommands() {
		fmt.Fprintf(to, "  %s [command]\n\nAvailable Commands:\n", command.CommandPath())
		for _, c := range command.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(to, "  %-*s %s\n", c.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	cliflag.PrintSections(to, fss, columns)
	if command.HasAvailableSubCommands() {
		fmt.Fprintf(to, "\nUse \"%s [command] --help\" for more information about a command.\n", command.CommandPath())
	}
}

// columns returns the width of a terminal, or 0 if to is not a terminal.
func columns(to io.Writer) int {
	if file, ok := to.(*os.File); ok {
		if width, _, err := term.GetSize(int(file.Fd())); err == nil {
			return width
		}
	}
	return 0
}

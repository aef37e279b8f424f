package main

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// section matches the heading of a flag section in the output of --help.
var section = regexp.MustCompile(`(?m)^(.+) flags:$`)

// Help prints each flag once, in a section, after the subcommands.
func TestHelpSections(t *testing.T) {
	for name, test := range map[string]struct {
		command *cobra.Command
		want    []string
	}{
		"aggregated": {newCommand(), []string{
			"Generic", "Serving", "Eventing", "Destination", "Replica", "Etcd", "Secure serving", "Auditing", "Features", "Authentication",
			"Authorization", "Egress selector", "Admission", "Logs", "Traces", "Global",
		}},
		"standalone": {newStandaloneCommand(), []string{
			"Generic", "Serving", "Eventing", "Destination", "Secure serving", "Authentication", "Logs", "Traces", "Global",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := execute(t, test.command, nil, "--help")
			if err != nil {
				t.Fatal(err)
			}
			help := out.String()
			var sections []string
			for _, heading := range section.FindAllStringSubmatch(help, -1) {
				sections = append(sections, heading[1])
			}
			if !slices.Equal(sections, test.want) {
				t.Errorf("sections %q, want %q", sections, test.want)
			}
			test.command.Flags().VisitAll(func(f *pflag.Flag) {
				if n := len(regexp.MustCompile(`(?m)^ +(-\w, )?--`+f.Name+`( |$)`).FindAllString(help, -1)); n != 1 && !f.Hidden && f.Deprecated == "" {
					t.Errorf("--%s is printed %d times, want once", f.Name, n)
				}
			})
			for _, c := range test.command.Commands() {
				if c.IsAvailableCommand() && !strings.Contains(help, c.Short) {
					t.Errorf("the subcommand %s is missing", c.Name())
				}
			}
			footer := `Use "` + test.command.CommandPath() + ` [command] --help" for more information about a command.`
			if got := strings.Contains(help, footer); got != test.command.HasAvailableSubCommands() {
				t.Errorf("the help refers to subcommands: %t", got)
			}
		})
	}
}

// Subcommands print their own help.
func TestHelpOfSubcommand(t *testing.T) {
	out, err := execute(t, newCommand(), nil, "snapshot", "restore", "--help")
	if err != nil || !strings.Contains(out.String(), "--peer-url") || strings.Contains(out.String(), "--etcd-servers") {
		t.Errorf("%v, %s", err, out)
	}
}

// Help is wrapped at the width of the terminal.
func TestHelpIsWrapped(t *testing.T) {
	options, sections := newStandaloneOptions(), newSections()
	options.addFlags(&sections)
	var out bytes.Buffer
	printUsage(&out, 100, &cobra.Command{Use: "test"}, sections)
	for line := range strings.Lines(out.String()) {
		if n := utf8.RuneCountInString(strings.TrimRight(line, "\n")); n > 100 {
			t.Errorf("%d columns: %s", n, line)
		}
	}
}

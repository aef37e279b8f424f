//go:build linux

// Command cluster builds the programs of Kubernetes from the versions pinned in its go.mod and runs them on this
// machine: a real control plane with API aggregation and, optionally, a node that runs Pods. It is for tests and
// experiments.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

const usage = `Usage: cluster <command> [flags]

  build [--node] [PROGRAM...]         build missing programs of a control plane, with --node also of a
                                      node, or the named ones, into the user's cache; the last line of
                                      output is their directory
  up --dir DIR [--node] [--bind-address IPv4]
                                      start a control plane, with --node also a node that runs pods and
                                      registries for their images, which needs root. The cluster keeps its
                                      data in DIR and outlives this command; the last line printed is the
                                      path of its kubeconfig. Where DIR's cluster runs already, only print
                                      that path
  down --dir DIR                      stop DIR's cluster, delete its data and leave nothing of its node
  stop --dir DIR PROGRAM              kill kube-apiserver, kube-controller-manager or etcd, to see what others do without it
  start --dir DIR PROGRAM             start it again as it was
  env --dir DIR                       print shell lines that set KUBECONFIG and PATH for DIR's cluster

DIR/cluster.json describes a cluster for tests: addresses, registries, files.
`

// errUsage is returned for an invalid command line, after the reason was printed.
var errUsage = errors.New("usage")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	// Administrative programs are not on every user's path.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/local/sbin:/usr/sbin:/sbin"); err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
	// A second signal ends the program at once, even if the cleanup blocks.
	context.AfterFunc(ctx, stop)

	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	switch {
	case errors.Is(err, errUsage):
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

// run executes one command line. Results go to stdout, progress to stderr.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if len(args) == 0 {
		fmt.Fprint(stderr, usage)
		return errUsage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() { fmt.Fprint(stderr, usage) }
	var dir string
	var o upOptions
	switch args[0] {
	case keeperCommand:
		if len(args) != 2 {
			return errUsage
		}
		return keep(ctx, args[1])
	case "build":
		flags.BoolVar(&o.node, "node", false, "build the programs of a node too")
	case "up":
		flags.BoolVar(&o.node, "node", false, "start a node too")
		flags.StringVar(&o.bindAddress, "bind-address", "", "IPv4 address of this machine, not loopback, for kube-apiserver")
		fallthrough
	case "down", "env", "stop", "start":
		flags.StringVar(&dir, "dir", "", "directory of the cluster")
	case "help", "-h", "-help", "--help":
		fmt.Fprint(stdout, usage)
		return nil
	default:
		fmt.Fprintf(stderr, "cluster: unknown command %q\n%s", args[0], usage)
		return errUsage
	}
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil
		}
		return errUsage
	}
	alone := args[0] == "stop" || args[0] == "start"
	if alone && flags.NArg() != 1 {
		fmt.Fprintf(stderr, "cluster: %s needs the name of one program\n%s", args[0], usage)
		return errUsage
	}
	if flags.NArg() > 0 && args[0] != "build" && !alone {
		fmt.Fprintf(stderr, "cluster: unexpected argument %q\n%s", flags.Arg(0), usage)
		return errUsage
	}
	if args[0] == "build" {
		wanted, err := selectPrograms(o.node, flags.Args())
		if err != nil {
			return err
		}
		bin, err := build(ctx, stderr, wanted)
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, bin)
		return nil
	}

	if dir == "" {
		fmt.Fprintf(stderr, "cluster: --dir is required\n%s", usage)
		return errUsage
	}
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("resolve --dir: %w", err)
	}
	home := home(absolute)
	switch args[0] {
	case "up":
		info, err := up(ctx, home, o, stderr)
		if err != nil {
			return err
		}
		fmt.Fprintln(stdout, info.Kubeconfig)
	case "down":
		return down(ctx, home, stderr)
	case "stop":
		return home.stopProgram(ctx, flags.Arg(0), stderr)
	case "start":
		return home.startProgram(ctx, flags.Arg(0), stderr)
	case "env":
		info, err := home.readInfo()
		if err != nil {
			return err
		}
		fmt.Fprintf(stdout, "export KUBECONFIG=%s\nexport PATH=%s:\"$PATH\"\n", shellQuote(info.Kubeconfig), shellQuote(info.Bin))
	}
	return nil
}

// shellQuote returns s as one word of a POSIX shell.
func shellQuote(s string) string {
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

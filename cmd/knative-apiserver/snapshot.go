package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver"
	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
)

// standardStream names standard input or output in place of a file.
const standardStream = "-"

// newSnapshotCommand returns the commands that maintain the data of the embedded etcd.
func newSnapshotCommand() *cobra.Command {
	command := &cobra.Command{
		Use:   "snapshot",
		Short: "Back up, restore and maintain the objects in the embedded etcd",
		Args:  cobra.NoArgs,
	}
	dataDir := command.PersistentFlags().String("data-dir", apiserver.NewOptions().DataDir, "Directory of the server's data.")
	command.AddCommand(
		&cobra.Command{
			Use:   "save [FILE | -]",
			Short: "Write all objects of the running server to a file, or to standard output",
			Long: "Writes the database of the embedded etcd as of now, with a checksum. It runs where the server runs:\n" +
				"kubectl -n knative-system exec knative-apiserver-0 -- /knative-apiserver snapshot save > objects.db",
			Args:         cobra.MaximumNArgs(1),
			SilenceUsage: true,
			RunE: func(command *cobra.Command, args []string) error {
				return saveTo(command, args, func(to io.Writer) error { return saveSnapshot(command.Context(), *dataDir, to) })
			},
		},
		newRestoreCommand(dataDir),
		&cobra.Command{
			Use:   "discard",
			Short: "Move the data of a stopped server aside, so that it replicates the objects from its peers",
			Args:  cobra.NoArgs, SilenceUsage: true,
			RunE: func(command *cobra.Command, _ []string) error {
				aside, err := etcd.Discard(*dataDir)
				tellAside(command.ErrOrStderr(), aside)
				return err
			},
		},
		&cobra.Command{
			Use:   "defragment",
			Short: "Release the space of deleted objects and clear the alarm of a full database",
			Long: "Releases the space of deleted and compacted objects in the running server's member of the embedded etcd. The member serves\n" +
				"no requests meanwhile. If there is space afterwards, the alarm of a full database is cleared.",
			Args:         cobra.NoArgs,
			SilenceUsage: true,
			RunE: func(command *cobra.Command, _ []string) error {
				return defragment(command.Context(), *dataDir, command.OutOrStdout())
			},
		},
	)
	return command
}

func newRestoreCommand(dataDir *string) *cobra.Command {
	var options etcd.RestoreOptions
	restore := &cobra.Command{
		Use:   "restore {FILE | -}",
		Short: "Restore the data of a stopped server from a file or standard input",
		Long: "Creates the data of an etcd with one member, which the others join when they start. Before that, the ConfigMap\n" +
			"knative-apiserver-etcd must name this member only, and the data of the others must be discarded, as hack/restore.sh does.",
		Args:         cobra.ExactArgs(1),
		SilenceUsage: true,
		RunE: func(command *cobra.Command, args []string) error {
			options.Dir = *dataDir
			aside, err := restoreSnapshot(args[0], command.InOrStdin(), options)
			tellAside(command.ErrOrStderr(), aside)
			return err
		},
	}
	flags := restore.Flags()
	flags.StringVar(&options.Name, "name", "", "Name of the Pod that owns the data.")
	flags.StringVar(&options.PeerURL, "peer-url", "", "URL by which other members of etcd reach the Pod, such as "+
		"https://knative-apiserver-0.knative-apiserver-peers.knative-system.svc."+defaultClusterDomain+":2380.")
	flags.BoolVar(&options.Replace, "replace", false, "If true, existing data is moved to etcd.TIME in the same directory. If false, existing data is an error.")
	flags.BoolVar(&options.SkipHash, "skip-hash-check", false, "If true, a database without a checksum is accepted, such as the file etcd/member/snap/db of a data directory.")
	for _, name := range []string{"name", "peer-url"} {
		_ = restore.MarkFlagRequired(name) // the flag is there
	}
	return restore
}

func tellAside(to io.Writer, aside string) {
	if aside != "" {
		fmt.Fprintln(to, "Moved the previous data to", aside)
	}
}

// saveTo calls save with the file that is the only argument, which is created once it is complete, or with standard output.
func saveTo(command *cobra.Command, args []string, save func(io.Writer) error) (err error) {
	if len(args) == 0 || args[0] == standardStream {
		return save(command.OutOrStdout())
	}
	path := args[0]
	file, err := os.CreateTemp(filepath.Dir(path), ".snapshot-*")
	if err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(file.Name()))
		}
	}()
	if err := save(file); err != nil {
		return errors.Join(err, file.Close())
	}
	if err := errors.Join(file.Sync(), file.Close()); err != nil {
		return fmt.Errorf("write snapshot: %w", err)
	}
	return os.Rename(file.Name(), path)
}

func saveSnapshot(ctx context.Context, dataDir string, to io.Writer) error {
	running, err := etcd.Connect(ctx, dataDir)
	if err != nil {
		return err
	}
	defer running.Close()
	return running.Snapshot(ctx, to)
}

// restoreSnapshot restores a file, or the content of in.
func restoreSnapshot(path string, in io.Reader, options etcd.RestoreOptions) (aside string, err error) {
	if path != standardStream {
		return etcd.Restore(path, options)
	}
	if err := os.MkdirAll(options.Dir, 0o700); err != nil {
		return "", fmt.Errorf("create data directory: %w", err)
	}
	// The file system of the data directory has space for a copy.
	file, err := os.CreateTemp(options.Dir, ".snapshot-*")
	if err != nil {
		return "", fmt.Errorf("read snapshot: %w", err)
	}
	defer os.Remove(file.Name())
	_, err = io.Copy(file, in)
	if err := errors.Join(err, file.Close()); err != nil {
		return "", fmt.Errorf("read snapshot: %w", err)
	}
	return etcd.Restore(file.Name(), options)
}

func defragment(ctx context.Context, dataDir string, tell io.Writer) error {
	running, err := etcd.Connect(ctx, dataDir)
	if err != nil {
		return err
	}
	defer running.Close()
	before, after, err := running.Defragment(ctx)
	if before > 0 {
		fmt.Fprintf(tell, "The database had %d bytes and has %d\n", before, after)
	}
	return err
}

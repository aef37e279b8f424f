// Command image builds an OCI image of one static Go program, without a container engine: it writes the image to an
// archive, pushes it to a registry, or both. The same program and flags result in the same image.
//
//	go run ./hack/image --binary PATH (--output FILE | --push REF) [flags] [-- ARGUMENT...]
//
// Arguments after -- are the default arguments of the program.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	var o options
	var output, push, reference, created string
	var insecure bool
	command := &cobra.Command{
		Use:           "image --binary PATH (--output FILE | --push REF)",
		Short:         "Build an OCI image of one static Go program",
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(command *cobra.Command, args []string) error {
			if o.binary == "" || output == "" && push == "" {
				return errors.New("--binary must be set, and one of --output and --push")
			}
			if o.entrypoint == "" {
				o.entrypoint = "/" + filepath.Base(o.binary)
			}
			if !path.IsAbs(o.entrypoint) {
				return fmt.Errorf("--entrypoint must be an absolute path, but is %q", o.entrypoint)
			}
			if o.title == "" {
				o.title = path.Base(o.entrypoint)
			}
			o.created = time.Unix(0, 0).UTC()
			if created != "" {
				var err error
				if o.created, err = time.Parse(time.RFC3339, created); err != nil {
					return fmt.Errorf("--created must be a time as 2006-01-02T15:04:05Z: %w", err)
				}
			}
			o.arguments = args
			image, sbom, err := build(o)
			if err != nil {
				return err
			}
			if output != "" {
				if reference == "" {
					reference = o.title + ":latest"
				}
				if err := archive(image, reference, output); err != nil {
					return err
				}
				beside := output + ".spdx.json"
				if err := os.WriteFile(beside, sbom, 0o644); err != nil {
					return err
				}
				fmt.Fprintln(command.ErrOrStderr(), "wrote", output, "and", beside)
			}
			if push == "" {
				return nil
			}
			digest, err := upload(command.Context(), image, push, insecure)
			if err != nil {
				return err
			}
			fmt.Fprintln(command.OutOrStdout(), digest)
			return nil
		},
	}
	flags := command.Flags()
	flags.StringVar(&o.binary, "binary", "", "program to put into the image: an ELF file built with CGO_ENABLED=0")
	flags.StringVar(&o.entrypoint, "entrypoint", "", "path of the program in the image (default /NAME)")
	flags.IntVar(&o.user, "user", 65532, "user and group that the program runs as")
	flags.IntSliceVar(&o.ports, "port", nil, "TCP ports that the program listens on")
	flags.StringVar(&o.roots, "roots", "/etc/ssl/certs/ca-certificates.crt",
		"file of the authorities that the program trusts in TLS; if it does not exist, the image contains none")
	flags.StringVar(&o.title, "title", "", "label org.opencontainers.image.title (default the program's name)")
	flags.StringVar(&o.version, "version", "", "label org.opencontainers.image.version")
	flags.StringVar(&o.revision, "revision", "", "label org.opencontainers.image.revision, the commit")
	flags.StringVar(&created, "created", "", "date of the image and all its files, usually the date of the commit (default 1970-01-01T00:00:00Z)")
	flags.StringVar(&output, "output", "", "write an archive to `FILE`, for ctr images import and docker load, and FILE.spdx.json")
	flags.StringVar(&reference, "reference", "", "name of the image in the archive (default TITLE:latest)")
	flags.StringVar(&push, "push", "", "push to `REF`, as HOST:PORT/NAME:TAG, and print its digest")
	flags.BoolVar(&insecure, "insecure", false, "push by plain HTTP if HTTPS is refused; loopback and private addresses do not need the flag")
	return command
}

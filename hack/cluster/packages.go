//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// dependency is a program that the node needs from the machine, and Debian's package of it.
type dependency struct {
	pkg     string
	program string
	// dirs are where the program may be, besides PATH.
	dirs []string
}

// dependencies lists the programs that Debian provides. kube-proxy calls nft.
func dependencies() []dependency {
	return []dependency{
		{pkg: "containerd", program: "containerd"},
		{pkg: "containerd", program: "ctr"},
		{pkg: "runc", program: "runc"},
		{pkg: "containernetworking-plugins", program: "ptp", dirs: cniDirs()},
		{pkg: "containernetworking-plugins", program: "host-local", dirs: cniDirs()},
		{pkg: "nftables", program: "nft"},
		{pkg: "iproute2", program: "ip"},
		{pkg: "util-linux", program: "nsenter"},
	}
}

// cniDirs are the directories in which distributions install CNI plugins.
func cniDirs() []string { return []string{"/usr/lib/cni", "/opt/cni/bin", "/usr/libexec/cni"} }

// find returns the path of the program.
func (d dependency) find() (string, error) {
	for _, dir := range d.dirs {
		if path, err := exec.LookPath(filepath.Join(dir, d.program)); err == nil {
			return path, nil
		}
	}
	return exec.LookPath(d.program)
}

// missingPackages returns the packages of missing programs.
func missingPackages(all []dependency) []string {
	var out []string
	for _, d := range all {
		if _, err := d.find(); err != nil && !slices.Contains(out, d.pkg) {
			out = append(out, d.pkg)
		}
	}
	return out
}

// installPackages installs missing packages that the node requires, on Debian and its derivatives.
func installPackages(ctx context.Context, progress io.Writer) error {
	missing := missingPackages(dependencies())
	if len(missing) == 0 {
		return nil
	}
	names := strings.Join(missing, " ")
	if _, err := os.Stat("/etc/debian_version"); err != nil {
		return fmt.Errorf("the node needs programs that are not on this machine: install what Debian calls %s", names)
	}
	fmt.Fprintf(progress, "installing Debian packages: %s\n", names)
	install := append([]string{"install", "--yes", "--no-install-recommends"}, missing...)
	if err := aptGet(ctx, progress, install...); err != nil {
		// A new machine may have no package lists, or old ones.
		if err := aptGet(ctx, progress, "update"); err != nil {
			return fmt.Errorf("install %s: %w", names, err)
		}
		if err := aptGet(ctx, progress, install...); err != nil {
			return fmt.Errorf("install %s: %w", names, err)
		}
	}
	if missing := missingPackages(dependencies()); len(missing) > 0 {
		return fmt.Errorf("the packages %s are installed and do not have the programs that the node needs", strings.Join(missing, " "))
	}
	return nil
}

func aptGet(ctx context.Context, progress io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, "apt-get", append([]string{"--quiet=2"}, args...)...)
	cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
	cmd.Stdout, cmd.Stderr = progress, progress
	// SIGKILL would interrupt dpkg.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		return errors.Join(ctx.Err(), fmt.Errorf("apt-get %s: %w", args[0], err))
	}
	return nil
}

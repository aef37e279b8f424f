//go:build linux

package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// The module files travel inside the program: it can then build the pinned versions from whatever
// directory it is run in, and finds programs that are already built without asking the go command.
var (
	//go:embed go.mod
	goMod []byte
	//go:embed go.sum
	goSum []byte
)

// program is one executable of the cluster: the file name it gets and the package it is built from.
type program struct{ name, pkg string }

// programs lists what build builds, quickest first so that the slow ones find a warm compile cache.
func programs() []program {
	return []program{
		{"etcd", "go.etcd.io/etcd/server/v3"},
		{"kubectl", "k8s.io/kubernetes/cmd/kubectl"},
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver"},
		{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager"},
	}
}

// versions are the module versions, such as "v1.36.3", that decide what the programs are.
type versions struct{ kubernetes, etcd string }

// readVersions finds the versions that a go.mod requires.
func readVersions(goMod []byte) (versions, error) {
	var v versions
	for module, version := range map[string]*string{
		"k8s.io/kubernetes":         &v.kubernetes,
		"go.etcd.io/etcd/server/v3": &v.etcd,
	} {
		requirement := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + `\s+(v[^\s/]+)`)
		match := requirement.FindSubmatch(goMod)
		if match == nil {
			return versions{}, fmt.Errorf("go.mod does not require %s", module)
		}
		*version = string(match[1])
	}
	return v, nil
}

// cacheName names the directory that holds the programs of these versions for one platform.
func (v versions) cacheName(goos, goarch string) string {
	return fmt.Sprintf("kubernetes-%s-etcd-%s-%s-%s", v.kubernetes, v.etcd, goos, goarch)
}

// ldflags strips the symbol tables, which halves the link time, and names the version: kube-apiserver
// would otherwise report one that some clients refuse to parse.
func (v versions) ldflags() string {
	return "-s -w -X k8s.io/component-base/version.gitVersion=" + v.kubernetes
}

// build makes sure that the named programs, or all where none is named, are in the user's cache and returns
// the directory they are in.
func build(ctx context.Context, progress io.Writer, names ...string) (string, error) {
	for _, name := range names {
		if !slices.ContainsFunc(programs(), func(p program) bool { return p.name == name }) {
			return "", fmt.Errorf("there is no program %q to build", name)
		}
	}
	v, err := readVersions(goMod)
	if err != nil {
		return "", err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding the cache directory for the Kubernetes programs: %w", err)
	}
	bin := filepath.Join(cache, "knative-apiserver", v.cacheName(runtime.GOOS, runtime.GOARCH))
	// No lock for the usual case: a program appears under its name only when it is complete.
	if len(missing(bin, names)) == 0 {
		return bin, nil
	}
	lock, err := acquireLock(ctx, bin+".lock", "waiting for another build of the same programs", progress)
	if err != nil {
		return "", err
	}
	defer lock.release()
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("creating the cache directory for the Kubernetes programs: %w", err)
	}
	return bin, buildInto(ctx, bin, missing(bin, names), v, progress)
}

// missing returns the named programs, or all where none is named, that are not in bin.
func missing(bin string, names []string) []program {
	var out []program
	for _, p := range programs() {
		if len(names) > 0 && !slices.Contains(names, p.name) {
			continue
		}
		if _, err := os.Stat(filepath.Join(bin, p.name)); err != nil {
			out = append(out, p)
		}
	}
	return out
}

func buildInto(ctx context.Context, bin string, todo []program, v versions, progress io.Writer) error {
	if len(todo) == 0 {
		return nil
	}
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("the go command is needed to build the Kubernetes programs, install Go: %w", err)
	}
	// What killed builds left behind; under the lock, no other build uses it.
	entries, err := os.ReadDir(bin)
	if err != nil {
		return fmt.Errorf("looking for abandoned builds: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".build-") {
			if err := os.RemoveAll(filepath.Join(bin, entry.Name())); err != nil {
				return fmt.Errorf("deleting an abandoned build: %w", err)
			}
		}
	}
	module, err := os.MkdirTemp(bin, ".build-")
	if err != nil {
		return fmt.Errorf("creating a directory to build in: %w", err)
	}
	defer os.RemoveAll(module)
	if err := errors.Join(
		os.WriteFile(filepath.Join(module, "go.mod"), goMod, 0o644),
		os.WriteFile(filepath.Join(module, "go.sum"), goSum, 0o644),
	); err != nil {
		return fmt.Errorf("writing the module to build in: %w", err)
	}
	for i, p := range todo {
		fmt.Fprintf(progress, "building %s (%d of %d)\n", p.name, i+1, len(todo))
		started := time.Now()
		// Explicit flags and GOWORK=off: whatever the user's GOFLAGS or workspace say, the versions
		// built are those of this go.mod.
		cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-buildvcs=false",
			"-ldflags", v.ldflags(), "-o", p.name, p.pkg)
		cmd.Dir = module
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
		cmd.Stdout, cmd.Stderr = progress, progress
		// An interrupt lets the go command stop its compilers; the default, SIGKILL, would orphan them.
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		err := cmd.Run()
		if ctx.Err() != nil {
			return fmt.Errorf("building %s was interrupted", p.pkg)
		}
		if err != nil {
			return fmt.Errorf("building %s: %w", p.pkg, err)
		}
		if err := os.Rename(filepath.Join(module, p.name), filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("putting %s into the cache: %w", p.name, err)
		}
		fmt.Fprintf(progress, "built %s in %.1f s\n", p.name, time.Since(started).Seconds())
	}
	return nil
}

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

// The module files are embedded in the program: it builds the pinned versions from any working directory, and finds existing
// programs without the go command.
var (
	//go:embed go.mod
	goMod []byte
	//go:embed go.sum
	goSum []byte
	// CoreDNS has its own module files, because it needs other versions of some modules than Kubernetes. They are changed
	// with go get -modfile=coredns.mod -tool github.com/coredns/coredns@VERSION.
	//go:embed coredns.mod
	coreDNSMod []byte
	//go:embed coredns.sum
	coreDNSSum []byte
	//go:embed pause/main.go
	pauseSource []byte
)

// module is a Go module with all its files by name.
type module map[string][]byte

func clusterModule() module {
	return module{"go.mod": goMod, "go.sum": goSum, "pause/main.go": pauseSource}
}

func coreDNSModule() module { return module{"go.mod": coreDNSMod, "go.sum": coreDNSSum} }

// program is one executable of the cluster: its file name, its package and the module that pins its version.
type program struct {
	name, pkg string
	module    func() module
}

// programs lists the programs of a control plane, or of a node too, fastest build first so that the slow builds find a warm
// compile cache.
func programs(node bool) []program {
	list := []program{
		{"etcd", "go.etcd.io/etcd/server/v3", clusterModule},
		{"kubectl", "k8s.io/kubernetes/cmd/kubectl", clusterModule},
		{"kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", clusterModule},
		{"kube-controller-manager", "k8s.io/kubernetes/cmd/kube-controller-manager", clusterModule},
	}
	if node {
		list = append(list,
			program{"pause", "./pause", clusterModule},
			program{"kube-scheduler", "k8s.io/kubernetes/cmd/kube-scheduler", clusterModule},
			program{"kube-proxy", "k8s.io/kubernetes/cmd/kube-proxy", clusterModule},
			program{"kubelet", "k8s.io/kubernetes/cmd/kubelet", clusterModule},
			program{"coredns", "github.com/coredns/coredns", coreDNSModule},
		)
	}
	return list
}

// versions are the module versions, such as "v1.36.3", that determine the programs.
type versions struct{ kubernetes, etcd, coreDNS string }

// embeddedVersions returns the versions that this program builds.
func embeddedVersions() (versions, error) {
	var v versions
	for _, required := range []struct {
		module  string
		in      []byte
		version *string
	}{
		{"k8s.io/kubernetes", goMod, &v.kubernetes},
		{"go.etcd.io/etcd/server/v3", goMod, &v.etcd},
		{"github.com/coredns/coredns", coreDNSMod, &v.coreDNS},
	} {
		var err error
		if *required.version, err = readVersion(required.in, required.module); err != nil {
			return versions{}, err
		}
	}
	return v, nil
}

// readVersion finds the version of a module that a go.mod requires.
func readVersion(goMod []byte, module string) (string, error) {
	requirement := regexp.MustCompile(`(?m)^\s*(?:require\s+)?` + regexp.QuoteMeta(module) + `\s+(v[^\s/]+)`)
	match := requirement.FindSubmatch(goMod)
	if match == nil {
		return "", fmt.Errorf("go.mod does not require %s", module)
	}
	return string(match[1]), nil
}

// cacheName names the directory that holds the programs of these versions for one platform.
func (v versions) cacheName(goos, goarch string) string {
	return fmt.Sprintf("kubernetes-%s-etcd-%s-coredns-%s-%s-%s", v.kubernetes, v.etcd, v.coreDNS, goos, goarch)
}

// ldflags strips the symbol tables, which halves the link time, and names the version: kube-apiserver
// would otherwise report one that some clients refuse to parse.
func (v versions) ldflags() string {
	return "-s -w -X k8s.io/component-base/version.gitVersion=" + v.kubernetes
}

// binDir is the directory in the user's cache that the programs are built into.
func binDir() (string, versions, error) {
	v, err := embeddedVersions()
	if err != nil {
		return "", versions{}, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", versions{}, fmt.Errorf("find the cache directory for the Kubernetes programs: %w", err)
	}
	return filepath.Join(cache, "knative-apiserver", v.cacheName(runtime.GOOS, runtime.GOARCH)), v, nil
}

// selectPrograms returns the named programs. Without names, it returns the programs of a control plane, and of a node if
// node is set.
func selectPrograms(node bool, names []string) ([]program, error) {
	if len(names) == 0 {
		return programs(node), nil
	}
	var out []program
	for _, name := range names {
		all := programs(true)
		i := slices.IndexFunc(all, func(p program) bool { return p.name == name })
		if i < 0 {
			return nil, fmt.Errorf("there is no program %q to build", name)
		}
		out = append(out, all[i])
	}
	return out, nil
}

// build ensures that the programs are in the user's cache and returns their directory.
func build(ctx context.Context, progress io.Writer, wanted []program) (string, error) {
	bin, v, err := binDir()
	if err != nil {
		return "", err
	}
	// The usual case needs no lock: a program gets its name only when it is complete.
	if len(missing(bin, wanted)) == 0 {
		return bin, nil
	}
	lock, err := acquireLock(ctx, bin+".lock", "waiting for another build of the same programs", progress)
	if err != nil {
		return "", err
	}
	defer lock.release()
	if err := os.MkdirAll(bin, 0o755); err != nil {
		return "", fmt.Errorf("create the cache directory for the Kubernetes programs: %w", err)
	}
	return bin, buildInto(ctx, bin, missing(bin, wanted), v, progress)
}

// missing returns the programs that do not exist in bin.
func missing(bin string, wanted []program) []program {
	var out []program
	for _, p := range wanted {
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
	// Leftovers of killed builds; the lock excludes other builds.
	entries, err := os.ReadDir(bin)
	if err != nil {
		return fmt.Errorf("find abandoned builds: %w", err)
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), ".build-") {
			if err := os.RemoveAll(filepath.Join(bin, entry.Name())); err != nil {
				return fmt.Errorf("delete an abandoned build: %w", err)
			}
		}
	}
	dir, err := os.MkdirTemp(bin, ".build-")
	if err != nil {
		return fmt.Errorf("create a directory to build in: %w", err)
	}
	defer os.RemoveAll(dir)
	for i, p := range todo {
		fmt.Fprintf(progress, "building %s (%d of %d)\n", p.name, i+1, len(todo))
		started := time.Now()
		if err := p.module().write(dir); err != nil {
			return err
		}
		// Explicit flags and GOWORK=off: the versions in this go.mod are built, regardless of the user's
		// GOFLAGS and workspace.
		cmd := exec.CommandContext(ctx, "go", "build", "-mod=readonly", "-buildvcs=false", "-tags=",
			"-ldflags", v.ldflags(), "-o", filepath.Join("bin", p.name), p.pkg)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
		cmd.Stdout, cmd.Stderr = progress, progress
		// An interrupt lets the go command stop its compilers; the default, SIGKILL, would orphan them.
		cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
		cmd.WaitDelay = 10 * time.Second
		err := cmd.Run()
		if ctx.Err() != nil {
			return fmt.Errorf("build of %s was interrupted", p.pkg)
		}
		if err != nil {
			return fmt.Errorf("build %s: %w", p.pkg, err)
		}
		if err := os.Rename(filepath.Join(dir, "bin", p.name), filepath.Join(bin, p.name)); err != nil {
			return fmt.Errorf("put %s into the cache: %w", p.name, err)
		}
		fmt.Fprintf(progress, "built %s in %.1f s\n", p.name, time.Since(started).Seconds())
	}
	return nil
}

// write replaces the files of another module in dir by the files of this one.
func (m module) write(dir string) error {
	for name, content := range m {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, content, 0o644)); err != nil {
			return fmt.Errorf("write the module to build in: %w", err)
		}
	}
	return nil
}

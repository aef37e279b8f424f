package main

import (
	"archive/tar"
	"bytes"
	"debug/buildinfo"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// sbomPath is the path of the bill of materials in the image.
const sbomPath = "/sbom.spdx.json"

// options configure an image.
type options struct {
	binary, entrypoint       string
	arguments                []string
	user                     int
	ports                    []int
	roots                    string
	title, version, revision string
	created                  time.Time
}

// file is a file in a layer.
type file struct {
	path    string
	content []byte
	mode    int64
}

// build returns the image, and its bill of materials in SPDX. Files that rarely change are in a separate layer before the
// program.
func build(o options) (v1.Image, []byte, error) {
	binary, info, err := program(o.binary)
	if err != nil {
		return nil, nil, err
	}
	sbom, err := describe(o, info)
	if err != nil {
		return nil, nil, err
	}
	base := []file{
		{"/etc/group", fmt.Appendf(nil, "root:x:0:\nnonroot:x:%d:\n", o.user), 0o444},
		{"/etc/passwd", fmt.Appendf(nil, "root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%[1]d:nonroot:/:/sbin/nologin\n", o.user), 0o444},
	}
	switch roots, err := os.ReadFile(o.roots); {
	case err == nil:
		base = append(base, file{"/etc/ssl/certs/ca-certificates.crt", roots, 0o444})
	case !errors.Is(err, fs.ErrNotExist):
		return nil, nil, fmt.Errorf("read trusted authorities: %w", err)
	}

	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	for _, content := range []struct {
		comment string
		files   []file
	}{
		{"users and trusted authorities", base},
		{"program", []file{{o.entrypoint, binary, 0o555}}},
		{"bill of materials", []file{{sbomPath, sbom, 0o444}}},
	} {
		layer, err := newLayer(content.files, o.created)
		if err != nil {
			return nil, nil, err
		}
		image, err = mutate.Append(image, mutate.Addendum{
			Layer:     layer,
			MediaType: types.OCILayer,
			History:   v1.History{Created: v1.Time{Time: o.created}, CreatedBy: "hack/image", Comment: content.comment},
		})
		if err != nil {
			return nil, nil, fmt.Errorf("add layer: %w", err)
		}
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture = setting(info, "GOOS"), setting(info, "GOARCH")
	config.Created = v1.Time{Time: o.created}
	config.Config = v1.Config{
		User:       fmt.Sprintf("%d:%[1]d", o.user),
		Entrypoint: []string{o.entrypoint},
		Cmd:        o.arguments,
		WorkingDir: "/",
		Env:        []string{"PATH=/", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		Labels:     labels(o, info),
	}
	for _, port := range o.ports {
		if config.Config.ExposedPorts == nil {
			config.Config.ExposedPorts = map[string]struct{}{}
		}
		config.Config.ExposedPorts[strconv.Itoa(port)+"/tcp"] = struct{}{}
	}
	image, err = mutate.ConfigFile(image, config)
	return image, sbom, err
}

// program reads the program, which must not depend on other files.
func program(name string) ([]byte, *debug.BuildInfo, error) {
	binary, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, err
	}
	info, err := buildinfo.Read(bytes.NewReader(binary))
	if err != nil {
		return nil, nil, fmt.Errorf("%s must be a Go program: %w", name, err)
	}
	executable, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return nil, nil, fmt.Errorf("%s must be a program for Linux (build it with GOOS=linux): %w", name, err)
	}
	if slices.ContainsFunc(executable.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP }) {
		return nil, nil, fmt.Errorf("%s needs shared libraries, which the image does not have (build it with CGO_ENABLED=0)", name)
	}
	return binary, info, nil
}

// setting returns a build setting of the program.
func setting(info *debug.BuildInfo, key string) string {
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}

// labels are the labels that the OCI image specification defines.
func labels(o options, info *debug.BuildInfo) map[string]string {
	all := map[string]string{
		"title":    o.title,
		"version":  o.version,
		"revision": o.revision,
		"created":  o.created.Format(time.RFC3339),
	}
	// Names that are not module paths, such as command-line-arguments, do not identify the source repository.
	if host, _, _ := strings.Cut(info.Main.Path, "/"); strings.Contains(host, ".") {
		all["source"] = "https://" + info.Main.Path
	}
	l := map[string]string{}
	for name, value := range all {
		if value != "" {
			l["org.opencontainers.image."+name] = value
		}
	}
	return l
}

// newLayer returns a layer with files and their directories, owned by root, with the given date.
func newLayer(files []file, date time.Time) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{"/": true}
	header := func(name string, kind byte, mode, size int64) error {
		return w.WriteHeader(&tar.Header{
			Typeflag: kind, Name: strings.TrimPrefix(name, "/"), Mode: mode, Size: size, ModTime: date, Format: tar.FormatPAX,
		})
	}
	for _, f := range files {
		for _, directory := range parents(f.path) {
			if made[directory] {
				continue
			}
			made[directory] = true
			if err := header(directory+"/", tar.TypeDir, 0o555, 0); err != nil {
				return nil, fmt.Errorf("add %s: %w", directory, err)
			}
		}
		if err := header(f.path, tar.TypeReg, f.mode, int64(len(f.content))); err != nil {
			return nil, fmt.Errorf("add %s: %w", f.path, err)
		}
		if _, err := w.Write(f.content); err != nil {
			return nil, fmt.Errorf("add %s: %w", f.path, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
}

// parents returns the parent directories of a file, outermost first.
func parents(name string) []string {
	var all []string
	for d := path.Dir(name); d != "/"; d = path.Dir(d) {
		all = append(all, d)
	}
	slices.Reverse(all)
	return all
}

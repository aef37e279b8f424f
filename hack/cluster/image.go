//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// importPause imports the image of the infrastructure container of every Pod into containerd.
func (n *node) importPause(ctx context.Context) error {
	program, err := os.ReadFile(n.program("pause"))
	if err != nil {
		return fmt.Errorf("read the pause program: %w", err)
	}
	image, err := programImage("pause", program)
	if err != nil {
		return fmt.Errorf("create the pause image: %w", err)
	}
	tag, err := name.NewTag(pauseImage)
	if err != nil {
		return err
	}
	if err := tarball.WriteToFile(n.path("pause.tar"), tag, image); err != nil {
		return fmt.Errorf("write the pause image: %w", err)
	}
	return runCommand(ctx, "ctr", "", "--address="+n.containerdSocket(), "--namespace=k8s.io", "images", "import", n.path("pause.tar"))
}

// programImage returns an image of one layer that holds a static program and runs it, as an unprivileged user.
func programImage(name string, program []byte) (v1.Image, error) {
	var archive bytes.Buffer
	writer := tar.NewWriter(&archive)
	if err := writer.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(program)), Typeflag: tar.TypeReg}); err != nil {
		return nil, err
	}
	if _, err := writer.Write(program); err != nil {
		return nil, err
	}
	if err := writer.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(archive.Bytes())), nil
	})
	if err != nil {
		return nil, err
	}
	platform, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH})
	if err != nil {
		return nil, err
	}
	image, err := mutate.AppendLayers(platform, layer)
	if err != nil {
		return nil, err
	}
	return mutate.Config(image, v1.Config{Entrypoint: []string{"/" + name}, User: "65535:65535"})
}

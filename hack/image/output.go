package main

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// upload pushes an image, with the credentials that container tools store in the user's home, and returns its reference by
// digest.
func upload(ctx context.Context, image v1.Image, reference string, insecure bool) (string, error) {
	var how []name.Option
	if insecure {
		how = append(how, name.Insecure)
	}
	ref, err := name.ParseReference(reference, how...)
	if err != nil {
		return "", fmt.Errorf("--push must be as HOST:PORT/NAME:TAG: %w", err)
	}
	err = remote.Write(ref, image, remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain))
	if err != nil {
		return "", fmt.Errorf("push to %s: %w", ref, err)
	}
	digest, err := image.Digest()
	if err != nil {
		return "", err
	}
	return ref.Context().Digest(digest.String()).String(), nil
}

// archive writes an image called reference to a file: an OCI layout, plus the manifest of docker archives, so that all tools can
// load it, and tools that support OCI have the same digest as a registry.
func archive(image v1.Image, reference, output string) (err error) {
	directory, err := os.MkdirTemp("", "image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(directory)
	if err := writeLayout(image, reference, directory); err != nil {
		return fmt.Errorf("write image layout: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(output), 0o755); err != nil {
		return err
	}
	temporary := output + ".partial"
	f, err := os.Create(temporary)
	if err != nil {
		return err
	}
	defer os.Remove(temporary)
	if err := errors.Join(pack(directory, f), f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", output, err)
	}
	return os.Rename(temporary, output)
}

// writeLayout writes the contents of the archive to a directory.
func writeLayout(image v1.Image, reference, directory string) error {
	l, err := layout.Write(directory, empty.Index)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	err = l.AppendImage(image, layout.WithPlatform(v1.Platform{OS: config.OS, Architecture: config.Architecture}),
		layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": reference,
			"io.containerd.image.name":          reference,
		}))
	if err != nil {
		return err
	}
	manifest, err := image.Manifest()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	docker := struct {
		Config   string
		RepoTags []string
		Layers   []string
	}{Config: blob(manifest.Config.Digest), RepoTags: []string{reference}}
	for _, l := range manifest.Layers {
		docker.Layers = append(docker.Layers, blob(l.Digest))
	}
	content, err := json.Marshal([]any{docker})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(directory, "manifest.json"), content, 0o644)
}

// pack archives the files of a directory in the order of their names, without dates and owners.
func pack(directory string, f *os.File) error {
	w := tar.NewWriter(f)
	root := os.DirFS(directory)
	err := fs.WalkDir(root, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(root, path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: path, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
	return errors.Join(err, w.Close())
}

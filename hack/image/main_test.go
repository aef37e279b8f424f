package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// compile builds a program that only uses the standard library, and returns its path.
func compile(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for name, content := range map[string]string{
		"go.mod":  "module example.com/hello\n",
		"main.go": "package main\n\nfunc main() { println(\"hello\") }\n",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-o", "hello", ".")
	build.Dir = directory
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOWORK=off", "GOFLAGS=")
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, output)
	}
	return filepath.Join(directory, "hello")
}

// run runs the command and returns its output.
func run(t *testing.T, arguments ...string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	command := newCommand()
	command.SetArgs(arguments)
	command.SetOut(&out)
	command.SetErr(io.Discard)
	err := command.ExecuteContext(t.Context())
	return strings.TrimSpace(out.String()), err
}

// contents returns the files of an image with their modes.
func contents(t *testing.T, image v1.Image) (modes map[string]string, files map[string][]byte) {
	t.Helper()
	modes, files = map[string]string{}, map[string][]byte{}
	all := mutate.Extract(image)
	defer all.Close()
	for r := tar.NewReader(all); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return modes, files
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[header.Name] = fmt.Sprintf("%o %d:%d", header.Mode, header.Uid, header.Gid)
		if files[header.Name], err = io.ReadAll(r); err != nil {
			t.Fatal(err)
		}
	}
}

func TestImageThatIsPushed(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	roots := filepath.Join(t.TempDir(), "roots.crt")
	if err := os.WriteFile(roots, []byte("roots"), 0o600); err != nil {
		t.Fatal(err)
	}
	binary := compile(t)
	reference := strings.TrimPrefix(server.URL, "http://") + "/team/hello:v1"
	pushed, err := run(t, "--binary", binary, "--push", reference, "--user", "1234", "--port", "8080,8443", "--roots", roots,
		"--entrypoint", "/bin/hello", "--version", "v1.2.3", "--revision", "abc", "--created", "2026-01-02T03:04:05Z",
		"--", "--flag", "value")
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewDigest(pushed)
	if err != nil {
		t.Fatalf("printed %q: %v", pushed, err)
	}
	image, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(image); err != nil {
		t.Error(err)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	want := v1.Config{
		User:         "1234:1234",
		Entrypoint:   []string{"/bin/hello"},
		Cmd:          []string{"--flag", "value"},
		WorkingDir:   "/",
		Env:          []string{"PATH=/", "SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt"},
		ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8443/tcp": {}},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "hello",
			"org.opencontainers.image.version":  "v1.2.3",
			"org.opencontainers.image.revision": "abc",
			"org.opencontainers.image.created":  "2026-01-02T03:04:05Z",
			"org.opencontainers.image.source":   "https://example.com/hello",
		},
	}
	if diff := cmp.Diff(want, config.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	if got := config.OS + "/" + config.Architecture; got != "linux/amd64" {
		t.Errorf("platform %s, want linux/amd64", got)
	}

	modes, files := contents(t, image)
	wantModes := map[string]string{
		"bin": "555 0:0", "bin/hello": "555 0:0",
		"etc": "555 0:0", "etc/group": "444 0:0", "etc/passwd": "444 0:0",
		"etc/ssl": "555 0:0", "etc/ssl/certs": "555 0:0", "etc/ssl/certs/ca-certificates.crt": "444 0:0",
		"sbom.spdx.json": "444 0:0",
	}
	if diff := cmp.Diff(wantModes, trimmed(modes)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	original, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(files["bin/hello"], original) {
		t.Error("the program is another one")
	}
	if got := string(files["etc/ssl/certs/ca-certificates.crt"]); got != "roots" {
		t.Errorf("the trusted authorities are %q", got)
	}
	if got := string(files["etc/passwd"]); !strings.Contains(got, "nonroot:x:1234:1234:") {
		t.Errorf("the user is not in passwd: %q", got)
	}
	checkSBOM(t, files["sbom.spdx.json"])
}

// trimmed removes the trailing slashes of directory names.
func trimmed(modes map[string]string) map[string]string {
	all := map[string]string{}
	for name, mode := range modes {
		all[strings.TrimSuffix(name, "/")] = mode
	}
	return all
}

func checkSBOM(t *testing.T, content []byte) {
	t.Helper()
	var d document
	if err := json.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	if d.SPDXVersion != "SPDX-2.3" || d.CreationInfo.Created != "2026-01-02T03:04:05Z" ||
		!strings.HasPrefix(d.DocumentNamespace, "https://example.com/hello/spdx/hello-") {
		t.Errorf("the bill of materials describes %+v", d)
	}
	components := map[string]string{}
	for _, c := range d.Packages {
		components[c.Name] = c.VersionInfo
	}
	if components["example.com/hello"] != "v1.2.3" || components["stdlib"] == "" {
		t.Errorf("the bill of materials lists %v", components)
	}
}

func TestSameProgramGivesTheSameImage(t *testing.T) {
	binary := compile(t)
	archives := make([][]byte, 2)
	for i := range archives {
		output := filepath.Join(t.TempDir(), "image.tar")
		if _, err := run(t, "--binary", binary, "--output", output, "--version", "v1"); err != nil {
			t.Fatal(err)
		}
		var err error
		if archives[i], err = os.ReadFile(output); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Error("two archives of the same program differ")
	}
}

// Both formats of the archive contain the pushed image.
func TestArchiveIsReadByAll(t *testing.T) {
	server := httptest.NewServer(registry.New())
	defer server.Close()
	output := filepath.Join(t.TempDir(), "new", "image.tar")
	pushed, err := run(t, "--binary", compile(t), "--output", output, "--reference", "localhost/hello:v1",
		"--push", strings.TrimPrefix(server.URL, "http://")+"/hello:v1")
	if err != nil {
		t.Fatal(err)
	}
	_, want, _ := strings.Cut(pushed, "@")

	tag, err := name.NewTag("localhost/hello:v1")
	if err != nil {
		t.Fatal(err)
	}
	docker, err := tarball.ImageFromPath(output, &tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Image(docker); err != nil {
		t.Error(err)
	}

	directory := t.TempDir()
	if extracted, err := exec.CommandContext(t.Context(), "tar", "-xf", output, "-C", directory).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, extracted)
	}
	index, err := layout.ImageIndexFromPath(directory)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 || manifest.Manifests[0].Digest.String() != want ||
		manifest.Manifests[0].Annotations["io.containerd.image.name"] != "localhost/hello:v1" {
		t.Errorf("the layout has %+v, want the image %s that was pushed", manifest.Manifests, want)
	}
	beside, err := os.ReadFile(output + ".spdx.json")
	if err != nil {
		t.Fatal(err)
	}
	if _, files := contents(t, docker); !bytes.Equal(files["sbom.spdx.json"], beside) {
		t.Error("the bill of materials beside the archive is not the one in the image")
	}
}

func TestSBOMListsModules(t *testing.T) {
	content, err := describe(options{title: "test"}, &debug.BuildInfo{
		GoVersion: "go1.26.0",
		Main:      debug.Module{Path: "example.com/program"},
		Deps: []*debug.Module{
			{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:abc="},
			{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/c", Version: "v2.0.0"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(content, &d); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range d.Packages {
		got = append(got, strings.TrimSpace(c.ExternalRefs[0].Locator+" "+c.SourceInfo))
	}
	want := []string{"pkg:golang/example.com/program", "pkg:golang/stdlib@1.26.0",
		"pkg:golang/example.com/a@v1.0.0 go.sum h1:abc=", "pkg:golang/example.com/c@v2.0.0"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
	if len(d.Relationships) != 4 {
		t.Errorf("relationships %v, want one of the document and three dependencies", d.Relationships)
	}
}

func TestRefusals(t *testing.T) {
	binary := compile(t)
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	output := filepath.Join(t.TempDir(), "image.tar")
	for name, test := range map[string]struct {
		want      string
		arguments []string
	}{
		"nothing to do":       {"one of --output and --push", []string{"--binary", binary}},
		"no program":          {"--binary must be set", []string{"--output", output}},
		"no Go program":       {"must be a Go program", []string{"--binary", text, "--output", output}},
		"relative entrypoint": {"absolute path", []string{"--binary", binary, "--entrypoint", "hello", "--output", output}},
		"no time":             {"--created must be a time", []string{"--binary", binary, "--created", "today", "--output", output}},
		"no reference":        {"--push must be as", []string{"--binary", binary, "--push", "::"}},
	} {
		if _, err := run(t, test.arguments...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, test.want)
		}
	}
	if _, err := os.Stat(output); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an archive remains (%v)", err)
	}
}

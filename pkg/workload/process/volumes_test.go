//go:build linux

package process

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
)

// mounted adds a volume and its mount, which is read-only unless the volume is empty.
func mounted(r *servingv1.Revision, name, at, subPath string, source corev1.VolumeSource) {
	if !containsVolume(r, name) {
		r.Spec.Volumes = append(r.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
	}
	c := &r.Spec.Containers[0]
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: at, SubPath: subPath, ReadOnly: source.EmptyDir == nil})
}

func containsVolume(r *servingv1.Revision, name string) bool {
	for _, v := range r.Spec.Volumes {
		if v.Name == name {
			return true
		}
	}
	return false
}

func configMapVolume(name string, items ...corev1.KeyToPath) corev1.VolumeSource {
	return corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}, Items: items}}
}

func secretVolume(name string, mode int32) corev1.VolumeSource {
	return corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: &mode}}
}

// seen is the result of a process that accesses a path.
type seen struct {
	Content, Error string
	Mode           fs.FileMode
}

// look makes a sample read a path, or write to it if write is set.
func look(t *testing.T, address, path string, write bool) seen {
	t.Helper()
	response, err := http.Get("http://" + address + fmt.Sprintf("/file?write=%t&path=%s", write, path))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	var s seen
	if err := json.NewDecoder(response.Body).Decode(&s); err != nil {
		t.Fatal(err)
	}
	return s
}

// serveFile handles the requests of look.
func serveFile(w http.ResponseWriter, r *http.Request) {
	path := r.FormValue("path")
	var s seen
	content, err := os.ReadFile(path)
	if r.FormValue("write") == "true" {
		err = os.WriteFile(path, []byte("written"), 0o600)
	}
	s.Content = string(content)
	if info, statErr := os.Stat(path); statErr == nil {
		s.Mode = info.Mode().Perm()
	}
	if err != nil {
		s.Error = err.Error()
	}
	_ = json.NewEncoder(w).Encode(s)
}

// TestVolumes checks that volumes are mounted where the spec requires, on paths that the machine does not have, and that
// these paths are not created on the machine.
func TestVolumes(t *testing.T) {
	const top = "/knative-apiserver-test"
	store := &fakeObjects{}
	settings := store.set(objects.ConfigMap, "settings", map[string]string{"a.yaml": "first", "b": "second"})
	store.set(objects.Secret, "credentials", map[string]string{"password": "hunter2"})
	h := start(t, Options{Objects: store})
	r := sample("volumes", "serve")
	mounted(r, "settings", top+"/deep/settings", "", configMapVolume("settings"))
	mounted(r, "credentials", "/etc/knative-apiserver-test", "", secretVolume("credentials", 0o400))
	mounted(r, "settings", "/etc/knative-apiserver-test.yaml", "a.yaml", configMapVolume("settings"))
	mounted(r, "items", top+"/items", "", configMapVolume("settings", corev1.KeyToPath{Key: "b", Path: "sub/dir/b"}))
	mounted(r, "empty", top+"/empty", "", corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}})
	mounted(r, "projected", top+"/empty/projected", "", corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{Secret: &corev1.SecretProjection{LocalObjectReference: corev1.LocalObjectReference{Name: "credentials"}}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		}}},
	}}})
	h.apply(r, 1)
	backend := h.await(r, "the backend to be ready", ready(1)).Instances[0]
	address := backend.Address
	for path, want := range map[string]seen{
		top + "/deep/settings/a.yaml":          {Content: "first", Mode: 0o644},
		top + "/deep/settings/b":               {Content: "second", Mode: 0o644},
		"/etc/knative-apiserver-test/password": {Content: "hunter2", Mode: 0o400},
		"/etc/knative-apiserver-test.yaml":     {Content: "first", Mode: 0o644},
		top + "/items/sub/dir/b":               {Content: "second", Mode: 0o644},
		top + "/empty/projected/password":      {Content: "hunter2", Mode: 0o644},
		top + "/empty/projected/labels":        {Content: `serving.knative.dev/configuration="cfg"` + "\n" + `serving.knative.dev/service="svc"`, Mode: 0o644},
	} {
		if got := look(t, address, path, false); got != want {
			t.Errorf("%s: %+v, want %+v", path, got, want)
		}
	}
	if content, err := os.ReadFile("/etc/passwd"); err != nil || look(t, address, "/etc/passwd", false).Content != string(content) {
		t.Errorf("/etc/passwd is another file: %v", err)
	}
	if got := look(t, address, top+"/deep/settings/b", true); !strings.Contains(got.Error, "read-only") {
		t.Errorf("writing to a ConfigMap: %+v", got)
	}
	if got := look(t, address, top+"/empty/x", true); got.Error != "" {
		t.Errorf("writing to an empty volume: %+v", got)
	}
	for _, path := range []string{top, "/etc/knative-apiserver-test", "/etc/knative-apiserver-test.yaml"} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is on the machine: %v", path, err)
		}
	}

	store.set(objects.ConfigMap, "settings", map[string]string{"a.yaml": "changed"})
	h.ObjectChanged(settings)
	h.eventually("the volume to have the new files", func() bool {
		return look(t, address, top+"/deep/settings/a.yaml", false).Content == "changed" && look(t, address, top+"/deep/settings/b", false).Error != ""
	})
	h.scale(r, 0)
	h.Drained(keyOf(r), backend.Name)
	h.await(r, "no backend", ready(0))
	h.eventually("the volumes to be removed", func() bool {
		entries, err := os.ReadDir(h.volumes)
		return err == nil && len(entries) == 0
	})
}

// TestProgramInAVolume checks that a program, its working directory and the files of its exec probe may be in a volume.
func TestProgramInAVolume(t *testing.T) {
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	store := &fakeObjects{}
	store.set(objects.ConfigMap, "scripts", map[string]string{
		"run.sh": "#!/bin/sh\nexec " + exe + "\n", "probe.sh": "#!/bin/sh\ntest -f run.sh\n",
	})
	h := start(t, Options{Objects: store})
	r := sample("scripts", "serve")
	mode := int32(0o755)
	source := configMapVolume("scripts")
	source.ConfigMap.DefaultMode = &mode
	mounted(r, "scripts", "/knative-apiserver-test/scripts", "", source)
	c := &r.Spec.Containers[0]
	c.Command, c.WorkingDir = []string{"./run.sh"}, "/knative-apiserver-test/scripts"
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"./probe.sh"}}}}
	h.apply(r, 1)
	s := h.await(r, "the backend to be ready", ready(1))
	if s.Failure != nil {
		t.Errorf("failure %+v", s.Failure)
	}
	awaitAnswer(h, r)
}

// awaitAnswer waits until a sample responds, if its readiness probe does not use its port.
func awaitAnswer(h *harness, r *servingv1.Revision) {
	h.t.Helper()
	h.eventually("the sample to answer", func() bool {
		state, _ := h.State(keyOf(r))
		if len(state.Instances) == 0 {
			return false
		}
		response, err := http.Get("http://" + state.Instances[0].Address + "/")
		if err != nil {
			return false
		}
		_, _ = io.Copy(io.Discard, response.Body)
		return response.Body.Close() == nil && response.StatusCode == http.StatusOK
	})
}

func TestVolumeFailures(t *testing.T) {
	for name, test := range map[string]struct {
		change func(r *servingv1.Revision)
		want   workload.Failure
	}{
		"missing ConfigMap": {
			change: func(r *servingv1.Revision) { mounted(r, "v", "/x", "", configMapVolume("missing")) },
			want:   workload.Failure{Resources: true, Reason: "CreateContainerConfigError", Message: `volume "v": configmap "missing" not found.`},
		},
		"missing key": {
			change: func(r *servingv1.Revision) {
				mounted(r, "v", "/x", "", configMapVolume("a", corev1.KeyToPath{Key: "k", Path: "k"}))
			},
			want: workload.Failure{Resources: true, Reason: "CreateContainerConfigError", Message: `volume "v": configmap "a" references non-existent key: k.`},
		},
		"too much": {
			change: func(r *servingv1.Revision) {
				items := make([]corev1.KeyToPath, 40)
				for i := range items {
					items[i] = corev1.KeyToPath{Key: "large", Path: fmt.Sprint(i)}
				}
				mounted(r, "v", "/x", "", configMapVolume("a", items...))
			},
			want: workload.Failure{Resources: true, Reason: "CreateContainerConfigError", Message: `volume "v": the files are larger than 32 MiB together.`},
		},
		"a file mounted over a directory": {
			change: func(r *servingv1.Revision) { mounted(r, "v", "/etc", "small", configMapVolume("a")) },
			want:   workload.Failure{Reason: "RunContainerError", Message: "mount at /etc: a file cannot be mounted over a directory"},
		},
		"no such part": {
			change: func(r *servingv1.Revision) { mounted(r, "v", "/x", "none", configMapVolume("a")) },
			want:   workload.Failure{Reason: "RunContainerError", Message: `subPath "none": openat none: no such file or directory`},
		},
		"a part outside": {
			change: func(r *servingv1.Revision) { mounted(r, "v", "/x", "../../../..", configMapVolume("a")) },
			want:   workload.Failure{Reason: "RunContainerError", Message: "path escapes from parent"},
		},
		"a file outside": {
			change: func(r *servingv1.Revision) {
				mounted(r, "v", "/x", "", configMapVolume("a", corev1.KeyToPath{Key: "small", Path: "../../outside"}))
			},
			want: workload.Failure{Resources: true, Reason: "CreateContainerConfigError", Message: `path escapes from parent`},
		},
		"a file that is a directory too": {
			change: func(r *servingv1.Revision) {
				mounted(r, "v", "/x", "", configMapVolume("a", corev1.KeyToPath{Key: "small", Path: "a"}, corev1.KeyToPath{Key: "small", Path: "a/b"}))
			},
			want: workload.Failure{Resources: true, Reason: "CreateContainerConfigError", Message: `not a directory`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := &fakeObjects{}
			store.set(objects.ConfigMap, "a", map[string]string{"small": "s", "large": strings.Repeat("x", 1<<20)})
			h := start(t, Options{Objects: store})
			r := sample("failing", "serve")
			test.change(r)
			h.apply(r, 1)
			s := h.await(r, "a failure", failing)
			if s.Failure.Resources != test.want.Resources || s.Failure.Reason != test.want.Reason || !strings.Contains(s.Failure.Message, test.want.Message) {
				t.Errorf("failure %+v, want %+v", s.Failure, test.want)
			}
		})
	}
}

// TestVolumesWithoutRoot runs the tests of volumes as another user, in user namespaces if the machine allows them.
func TestVolumesWithoutRoot(t *testing.T) {
	if os.Getuid() != 0 {
		return // All tests run without root.
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "process-test-") //nolint:usetesting // t.TempDir is not readable by another user
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	const otherUser = 65534
	// That user must have access to the program.
	copied := filepath.Join(dir, "process.test")
	if err := copyProgram(exe, copied); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, otherUser, otherUser); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), copied, "-test.run", "^(TestVolumes|TestProgramInAVolume)$", "-test.v")
	cmd.Env = []string{"TMPDIR=" + dir, "PATH=" + os.Getenv("PATH"), "HOME=" + dir}
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: otherUser, Gid: otherUser}}
	out, err := cmd.CombinedOutput()
	if err != nil && strings.Contains(string(out), spawn.ErrNoNamespaces.Error()) {
		t.Log("this machine allows no user namespaces")
		return
	}
	if err != nil || !strings.Contains(string(out), "--- PASS: TestVolumes") {
		t.Errorf("%v\n%s", err, out)
	}
}

func copyProgram(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return errors.Join(err, out.Close())
	}
	return out.Close()
}

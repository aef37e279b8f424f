// Package volumes writes the files of a backend's volumes and lists the mounts of its containers.
package volumes

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/objects"
	"github.com/knative-apiserver/knative-apiserver/pkg/workload/process/spawn"
)

const (
	// maxVolumeBytes bounds the total size of a volume's files. Items may use the same key any number of times.
	maxVolumeBytes = 32 << 20
	// maxMounts bounds the mounts of one container.
	maxMounts = 256
	// defaultFileMode is the mode of files without one in the spec.
	defaultFileMode = 0o644
	// dataLink is the link to the directory with the current files. Replacing the link replaces all files at once.
	dataLink = "..data"
)

// Field returns the content of a file for a field of the Pod that a backend would have, and false if there is no such field.
type Field func(path string) (content string, ok bool)

// file is a file of a volume.
type file struct {
	data []byte
	mode fs.FileMode
}

// files are the files of a volume by path.
type files struct {
	byPath map[string]file
	size   int
}

func (f *files) add(name string, data []byte, mode *int32, defaultMode *int32) error {
	if f.size += len(data); f.size > maxVolumeBytes {
		return fmt.Errorf("the files are larger than %d MiB together", maxVolumeBytes>>20)
	}
	m := ptr.Deref(mode, ptr.Deref(defaultMode, defaultFileMode))
	f.byPath[path.Clean(name)] = file{data: data, mode: fs.FileMode(m) & fs.ModePerm}
	return nil
}

// addKeys adds the keys of an object: the given items, or all keys without items.
func (f *files) addKeys(in *objects.Snapshot, kind objects.Kind, name string, optional *bool, items []corev1.KeyToPath, mode *int32) error {
	d, err := in.Get(kind, name, optional)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(d.Text)) {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
		for _, key := range slices.Sorted(maps.Keys(d.Binary)) {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		value, ok := d.Binary[item.Key]
		if text, isText := d.Text[item.Key]; isText {
			value, ok = []byte(text), true
		}
		if !ok {
			if ptr.Deref(optional, false) {
				continue
			}
			return fmt.Errorf("%s %q references non-existent key: %s", strings.ToLower(string(kind)), name, item.Key)
		}
		if err := f.add(item.Path, value, item.Mode, mode); err != nil {
			return err
		}
	}
	return nil
}

// filesOf returns the files of a volume from the current objects.
func filesOf(v *corev1.Volume, in *objects.Snapshot, field Field) (map[string]file, error) {
	f := &files{byPath: map[string]file{}}
	var err error
	switch {
	case v.ConfigMap != nil:
		err = f.addKeys(in, objects.ConfigMap, v.ConfigMap.Name, v.ConfigMap.Optional, v.ConfigMap.Items, v.ConfigMap.DefaultMode)
	case v.Secret != nil:
		err = f.addKeys(in, objects.Secret, v.Secret.SecretName, v.Secret.Optional, v.Secret.Items, v.Secret.DefaultMode)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if err = f.project(&v.Projected.Sources[i], v.Projected.DefaultMode, in, field); err != nil {
				break
			}
		}
	}
	return f.byPath, err
}

// project adds the files of one source of a projected volume.
func (f *files) project(source *corev1.VolumeProjection, mode *int32, in *objects.Snapshot, field Field) error {
	if c := source.ConfigMap; c != nil {
		return f.addKeys(in, objects.ConfigMap, c.Name, c.Optional, c.Items, mode)
	}
	if s := source.Secret; s != nil {
		return f.addKeys(in, objects.Secret, s.Name, s.Optional, s.Items, mode)
	}
	if source.DownwardAPI == nil {
		return nil
	}
	for _, item := range source.DownwardAPI.Items {
		if item.FieldRef == nil {
			continue
		}
		value, ok := field(item.FieldRef.FieldPath)
		if !ok {
			return fmt.Errorf("no value for the field %q", item.FieldRef.FieldPath)
		}
		if err := f.add(item.Path, []byte(value), item.Mode, mode); err != nil {
			return err
		}
	}
	return nil
}

// Check returns an error if processes cannot have the volumes of a Revision.
func Check(all []corev1.Volume, field Field) error {
	if len(all) > 0 && !spawn.MountsSupported {
		return fmt.Errorf("Standalone mounts volumes on Linux only: remove spec.template.spec.volumes (%q) and use paths of this machine.", all[0].Name)
	}
	for i := range all {
		if err := check(&all[i], fmt.Sprintf("spec.template.spec.volumes[%d]", i), field); err != nil {
			return err
		}
	}
	return nil
}

// CheckMounts returns an error if a container, at the given path of the spec, has too many mounts.
func CheckMounts(mounts []corev1.VolumeMount, at string) error {
	if len(mounts) > maxMounts {
		return fmt.Errorf("Standalone mounts at most %d volumes in a container: reduce %s.volumeMounts.", maxMounts, at)
	}
	return nil
}

func check(v *corev1.Volume, at string, field Field) error {
	switch {
	case v.ConfigMap != nil, v.Secret != nil, v.EmptyDir != nil:
		return nil
	case v.Projected != nil:
		for i, source := range v.Projected.Sources {
			if source.ServiceAccountToken != nil {
				return fmt.Errorf("Standalone issues no tokens of ServiceAccounts: remove %s.projected.sources[%d].serviceAccountToken.", at, i)
			}
			for _, item := range ptr.Deref(source.DownwardAPI, corev1.DownwardAPIProjection{}).Items {
				if item.FieldRef == nil {
					return fmt.Errorf("Standalone has no container resources that %s.projected.sources[%d].downwardAPI could refer to: use fieldRef.", at, i)
				}
				if _, ok := field(item.FieldRef.FieldPath); !ok {
					return fmt.Errorf("Standalone has no value for the field %q of %s.projected.sources[%d].downwardAPI: use another field.", item.FieldRef.FieldPath, at, i)
				}
			}
		}
		return nil
	}
	return fmt.Errorf("Standalone runs processes of this machine and cannot mount the volume %q: use configMap, secret, projected or emptyDir in %s, or a path of this machine.", v.Name, at)
}

// References calls add with the objects that a volume refers to.
func References(v *corev1.Volume, add func(kind objects.Kind, name string)) {
	if v.ConfigMap != nil {
		add(objects.ConfigMap, v.ConfigMap.Name)
	}
	if v.Secret != nil {
		add(objects.Secret, v.Secret.SecretName)
	}
	for _, source := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
		if source.ConfigMap != nil {
			add(objects.ConfigMap, source.ConfigMap.Name)
		}
		if source.Secret != nil {
			add(objects.Secret, source.Secret.Name)
		}
	}
}

// Dir is the directory with the volumes of one backend. Only the server's user may enter it.
type Dir string

// path returns the directory of a volume.
func (d Dir) path(name string) string { return filepath.Join(string(d), "volumes", name) }

// Staging returns an empty directory to mount a new root on.
func (d Dir) Staging() string { return filepath.Join(string(d), "root") }

// Write creates or replaces the files of all volumes, and creates empty volumes.
func (d Dir) Write(all []corev1.Volume, in *objects.Snapshot, field Field) error {
	for _, dir := range []string{d.Staging(), d.path("")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create directory of volumes: %w", err)
		}
	}
	for i := range all {
		if err := d.writeVolume(&all[i], in, field); err != nil {
			return fmt.Errorf("volume %q: %w", all[i].Name, err)
		}
	}
	return nil
}

func (d Dir) writeVolume(volume *corev1.Volume, in *objects.Snapshot, field Field) error {
	dir := d.path(volume.Name)
	mode := fs.FileMode(0o755)
	if volume.EmptyDir != nil {
		mode = 0o777
	}
	if err := os.MkdirAll(dir, mode); err != nil {
		return err
	}
	if volume.EmptyDir != nil {
		// The umask of the server must not apply.
		return os.Chmod(dir, mode|fs.ModeSticky)
	}
	wanted, err := filesOf(volume, in, field)
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, mode); err != nil {
		return err
	}
	return write(dir, wanted)
}

// Remove deletes the files of all volumes.
func (d Dir) Remove() error { return os.RemoveAll(string(d)) }

// Mounts returns the mounts of a container, parents before nested ones.
func (d Dir) Mounts(all []corev1.Volume, mounts []corev1.VolumeMount) []spawn.Mount {
	writable := map[string]bool{}
	for i := range all {
		writable[all[i].Name] = all[i].EmptyDir != nil
	}
	var sorted []spawn.Mount
	for _, m := range mounts {
		sorted = append(sorted, spawn.Mount{
			Volume: d.path(m.Name), SubPath: m.SubPath, Target: path.Clean(m.MountPath),
			ReadOnly: m.ReadOnly || !writable[m.Name], Writable: writable[m.Name],
		})
	}
	slices.SortStableFunc(sorted, func(a, b spawn.Mount) int {
		return cmp.Or(cmp.Compare(strings.Count(a.Target, "/"), strings.Count(b.Target, "/")), cmp.Compare(a.Target, b.Target))
	})
	return sorted
}

// write replaces all files of a volume at once: readers see either the old or the new files. As in a kubelet's volumes,
// each top-level name is a link through dataLink into an immutable directory.
func write(dir string, wanted map[string]file) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	old, err := root.Readlink(dataLink)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	current := ".." + rand.String(10)
	if err := writeAll(root, current, wanted); err != nil {
		return errors.Join(err, root.RemoveAll(current))
	}
	next := dataLink + "_next"
	if err := root.Symlink(current, next); err != nil {
		return errors.Join(err, root.RemoveAll(current))
	}
	if err := root.Rename(next, dataLink); err != nil {
		return errors.Join(err, root.Remove(next), root.RemoveAll(current))
	}
	if err := link(root, wanted); err != nil {
		return err
	}
	if old != "" {
		return root.RemoveAll(old)
	}
	return nil
}

func writeAll(root *os.Root, dir string, wanted map[string]file) error {
	if err := mkdir(root, dir); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(wanted)) {
		at := dir
		for _, part := range strings.Split(path.Dir(name), "/") {
			if part == "." {
				continue
			}
			at = path.Join(at, part)
			if err := mkdir(root, at); err != nil {
				return err
			}
		}
		f := wanted[name]
		name = path.Join(dir, name)
		if err := root.WriteFile(name, f.data, 0o600); err != nil {
			return err
		}
		if err := root.Chmod(name, f.mode); err != nil {
			return err
		}
	}
	return nil
}

// mkdir creates a directory that all users may enter, independent of the server's umask, unless it exists.
func mkdir(root *os.Root, name string) error {
	if err := root.Mkdir(name, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return root.Chmod(name, 0o755)
}

// link creates the links for top-level names, and removes links to deleted files.
func link(root *os.Root, wanted map[string]file) error {
	names := map[string]bool{}
	for name := range wanted {
		top, _, _ := strings.Cut(name, "/")
		names[top] = true
	}
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return err
	}
	for _, entry := range entries {
		name := entry.Name()
		switch {
		case strings.HasPrefix(name, ".."):
		case names[name]:
			delete(names, name)
		default:
			if err := root.Remove(name); err != nil {
				return err
			}
		}
	}
	for name := range names {
		if err := root.Symlink(path.Join(dataLink, name), name); err != nil {
			return err
		}
	}
	return nil
}

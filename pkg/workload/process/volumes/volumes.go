package process

import (
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
func (f *files) addKeys(in *inputs, kind ReferenceKind, name string, optional *bool, items []corev1.KeyToPath, mode *int32) error {
	d, err := in.get(kind, name, optional)
	if err != nil {
		return err
	}
	if len(items) == 0 {
		for _, key := range slices.Sorted(maps.Keys(d.text)) {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
		for _, key := range slices.Sorted(maps.Keys(d.binary)) {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		value, ok := d.binary[item.Key]
		if text, isText := d.text[item.Key]; isText {
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
func (p *plan) filesOf(v *corev1.Volume, backend string, in *inputs) (map[string]file, error) {
	f := &files{byPath: map[string]file{}}
	var err error
	switch {
	case v.ConfigMap != nil:
		err = f.addKeys(in, ConfigMap, v.ConfigMap.Name, v.ConfigMap.Optional, v.ConfigMap.Items, v.ConfigMap.DefaultMode)
	case v.Secret != nil:
		err = f.addKeys(in, Secret, v.Secret.SecretName, v.Secret.Optional, v.Secret.Items, v.Secret.DefaultMode)
	case v.Projected != nil:
		for i := range v.Projected.Sources {
			if err = p.project(f, &v.Projected.Sources[i], backend, v.Projected.DefaultMode, in); err != nil {
				break
			}
		}
	}
	return f.byPath, err
}

// project adds the files of one source of a projected volume.
func (p *plan) project(f *files, source *corev1.VolumeProjection, backend string, mode *int32, in *inputs) error {
	if c := source.ConfigMap; c != nil {
		return f.addKeys(in, ConfigMap, c.Name, c.Optional, c.Items, mode)
	}
	if s := source.Secret; s != nil {
		return f.addKeys(in, Secret, s.Name, s.Optional, s.Items, mode)
	}
	if source.DownwardAPI == nil {
		return nil
	}
	for _, item := range source.DownwardAPI.Items {
		if item.FieldRef == nil {
			continue
		}
		value, ok := p.fieldFile(item.FieldRef.FieldPath, backend)
		if !ok {
			return fmt.Errorf("no value for the field %q", item.FieldRef.FieldPath)
		}
		if err := f.add(item.Path, []byte(value), item.Mode, mode); err != nil {
			return err
		}
	}
	return nil
}

// fieldFile returns the content of a file for a field: one line per label or annotation, or the field's value.
func (p *plan) fieldFile(field, backend string) (string, bool) {
	var values map[string]string
	switch field {
	case "metadata.labels":
		values = p.revision.Labels
	case "metadata.annotations":
		values = p.revision.Annotations
	default:
		return p.field(field, backend)
	}
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(values)) {
		lines = append(lines, fmt.Sprintf("%s=%q", key, values[key]))
	}
	return strings.Join(lines, "\n"), true
}

// checkVolume returns an error for a volume that processes cannot have.
func (p *plan) checkVolume(v *corev1.Volume, at string) error {
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
				if _, ok := p.fieldFile(item.FieldRef.FieldPath, ""); !ok {
					return fmt.Errorf("Standalone has no value for the field %q of %s.projected.sources[%d].downwardAPI: use another field.", item.FieldRef.FieldPath, at, i)
				}
			}
		}
		return nil
	}
	return fmt.Errorf("Standalone runs processes of this machine and cannot mount the volume %q: use configMap, secret, projected or emptyDir in %s, or a path of this machine.", v.Name, at)
}

// volumeReferences calls add with the objects that a volume refers to.
func volumeReferences(v *corev1.Volume, add func(kind ReferenceKind, name string)) {
	if v.ConfigMap != nil {
		add(ConfigMap, v.ConfigMap.Name)
	}
	if v.Secret != nil {
		add(Secret, v.Secret.SecretName)
	}
	for _, source := range ptr.Deref(v.Projected, corev1.ProjectedVolumeSource{}).Sources {
		if source.ConfigMap != nil {
			add(ConfigMap, source.ConfigMap.Name)
		}
		if source.Secret != nil {
			add(Secret, source.Secret.Name)
		}
	}
}

// volumes are the volumes of one backend, in a directory that only the server's user may enter.
type volumes struct{ dir string }

// path returns the directory of a volume.
func (v volumes) path(name string) string { return filepath.Join(v.dir, "volumes", name) }

// staging returns an empty directory to mount a new root on.
func (v volumes) staging() string { return filepath.Join(v.dir, "root") }

// fill writes the files of all volumes of a plan, and creates empty volumes.
func (v volumes) fill(p *plan, backend string, in *inputs) error {
	for _, dir := range []string{v.staging(), v.path("")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return fmt.Errorf("create directory of volumes: %w", err)
		}
	}
	for i := range p.volumes {
		volume := &p.volumes[i]
		if err := v.fillOne(p, volume, backend, in); err != nil {
			return fmt.Errorf("volume %q: %w", volume.Name, err)
		}
	}
	return nil
}

func (v volumes) fillOne(p *plan, volume *corev1.Volume, backend string, in *inputs) error {
	dir := v.path(volume.Name)
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
	wanted, err := p.filesOf(volume, backend, in)
	if err != nil {
		return err
	}
	if err := os.Chmod(dir, mode); err != nil {
		return err
	}
	return write(dir, wanted)
}

// remove deletes the files of all volumes.
func (v volumes) remove() error { return os.RemoveAll(v.dir) }

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

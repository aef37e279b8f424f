package settings

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"
)

// configDir reads a directory of manifests that hold ConfigMaps.
type configDir struct {
	path string
	// held are the ConfigMaps that each file held when it was last read, by path. A file that is broken now
	// has not lost them.
	held map[string]sets.Set[string]
}

// dirContents is what one reading of a directory found.
type dirContents struct {
	// data is that of the ConfigMaps found whole, by name, and source the file each was found in.
	data   map[string]map[string]string
	source map[string]string
	// faults are by the name of a ConfigMap, or by the path of what cannot be read.
	faults map[string]error
	// broken ConfigMaps are there, but their data is not known.
	broken sets.Set[string]
}

// read reads all files whose names end in .yaml or .yml. The error says that there is no reading the
// directory at all.
func (d *configDir) read() (*dirContents, error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, err
	}
	contents := &dirContents{
		data: map[string]map[string]string{}, source: map[string]string{}, faults: map[string]error{}, broken: sets.New[string](),
	}
	held := map[string]sets.Set[string]{}
	for _, entry := range entries {
		path := filepath.Join(d.path, entry.Name())
		if extension := filepath.Ext(path); extension != ".yaml" && extension != ".yml" {
			klog.V(2).InfoS("Ignoring a file of the settings whose name does not end in .yaml or .yml", "file", path)
			continue
		}
		// Reading a pipe would wait for a writer.
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			klog.V(2).InfoS("Ignoring what is no file among the settings", "path", path)
			continue
		}
		names, err := contents.readFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			names = names.Union(contents.breakFile(path, d.held[path].Difference(names), err))
		}
		held[path] = names
	}
	d.held = held
	return contents, nil
}

// readFile takes in the ConfigMaps of a file, and returns the names of all that it recognized. The error says
// that there may be more.
func (c *dirContents) readFile(path string) (sets.Set[string], error) {
	names := sets.New[string]()
	content, err := os.ReadFile(path)
	if err != nil {
		return names, err
	}
	var errs []error
	for documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(content))); ; {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return names, errors.Join(errs...)
		}
		if err != nil {
			return names, errors.Join(append(errs, err)...)
		}
		var object metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(document, &object); err != nil {
			errs = append(errs, err)
			continue
		}
		switch {
		case object.Kind == "" && object.Name == "":
			// Comments only.
		case object.APIVersion != "v1" || object.Kind != "ConfigMap" || !Known(object.Name):
			klog.InfoS("Ignoring an object that holds no settings", "file", path, "kind", object.Kind, "name", object.Name)
		default:
			names.Insert(object.Name)
			c.take(object.Name, path, document)
		}
	}
}

// take takes in the document of a ConfigMap.
func (c *dirContents) take(name, path string, document []byte) {
	var object corev1.ConfigMap
	err := yaml.UnmarshalStrict(document, &object)
	if err != nil {
		err = fmt.Errorf("%s in %s must be a ConfigMap whose data are strings: %w", name, path, err)
	}
	if source, again := c.source[name]; again {
		err = fmt.Errorf("%s must be given only once, not in %s and in %s", name, source, path)
	}
	c.source[name] = path
	if err != nil {
		c.faults[name] = err
		c.broken.Insert(name)
	}
	c.data[name] = object.Data
	if object.Data == nil {
		c.data[name] = map[string]string{}
	}
}

// breakFile notes that a file is not fully read. names are the ConfigMaps that it may still hold; where none
// are known, the name of the file tells. It returns the ConfigMaps taken for broken.
func (c *dirContents) breakFile(path string, names sets.Set[string], err error) sets.Set[string] {
	err = fmt.Errorf("reading %s: %w", path, err)
	base := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	if len(names) == 0 && Known(base) && c.source[base] == "" {
		names = sets.New(base)
	}
	if len(names) == 0 {
		c.faults[path] = err
	}
	for name := range names {
		c.faults[name] = err
	}
	c.broken = c.broken.Union(names)
	return names
}

// changes returns what Store.Update is to take over: ConfigMaps that are not there get nil, and those that are
// broken are left out.
func (c *dirContents) changes() map[string]map[string]string {
	changes := map[string]map[string]string{}
	for _, known := range configMaps() {
		if !c.broken.Has(known.name) {
			changes[known.name] = c.data[known.name]
		}
	}
	return changes
}

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

// configDir reads a directory of ConfigMap manifests.
type configDir struct {
	path string
	// held are the ConfigMaps in each file at its last successful read, by path. They still count for a file that is
	// currently invalid.
	held map[string]sets.Set[string]
}

// dirContents is the result of reading a directory.
type dirContents struct {
	// data is the data of the valid ConfigMaps, by name, and source the file of each.
	data   map[string]map[string]string
	source map[string]string
	// faults are errors by the name of a ConfigMap, or by the path of an unreadable file.
	faults map[string]error
	// broken are ConfigMaps that exist, but whose data is unknown.
	broken sets.Set[string]
}

// read reads all files with the extension .yaml or .yml. It returns an error if the directory cannot be read.
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
			klog.V(2).InfoS("Ignoring settings file without extension .yaml or .yml", "file", path)
			continue
		}
		// Reading a pipe would block until it has a writer.
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			klog.V(2).InfoS("Ignoring irregular settings file", "path", path)
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

// readFile adds the ConfigMaps of a file, and returns the names of all recognized ones. If it returns an error, the file may
// contain more.
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
			// Only comments.
		case object.APIVersion != "v1" || object.Kind != "ConfigMap" || !Known(object.Name):
			klog.InfoS("Ignoring object without settings", "file", path, "kind", object.Kind, "name", object.Name)
		default:
			names.Insert(object.Name)
			c.add(object.Name, path, document)
		}
	}
}

// add adds a ConfigMap from its YAML document.
func (c *dirContents) add(name, path string, document []byte) {
	var object corev1.ConfigMap
	err := yaml.UnmarshalStrict(document, &object)
	if err != nil {
		err = fmt.Errorf("%s in %s must be a ConfigMap with string values: %w", name, path, err)
	}
	if source, exists := c.source[name]; exists {
		err = fmt.Errorf("%s must be defined only once, but is in %s and %s", name, source, path)
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

// breakFile records that a file could not be read completely. names are the ConfigMaps that it may contain. If it is
// empty, the name of the file determines the ConfigMap. It returns the ConfigMaps recorded as broken.
func (c *dirContents) breakFile(path string, names sets.Set[string], err error) sets.Set[string] {
	err = fmt.Errorf("read %s: %w", path, err)
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

// changes returns the argument of Store.Update: nil for missing ConfigMaps, and no entry for broken ones.
func (c *dirContents) changes() map[string]map[string]string {
	changes := map[string]map[string]string{}
	for _, known := range configMaps() {
		if !c.broken.Has(known.name) {
			changes[known.name] = c.data[known.name]
		}
	}
	return changes
}

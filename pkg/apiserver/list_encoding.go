package apiserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/yaml"
)

// A stored object does not change without a new resourceVersion, so its JSON is cached and reused in lists. The kinds of this
// server have many small fields, which cost several times as much to encode as a ConfigMap of the same size. A list of 500
// Services takes 0.2 ms instead of 5 ms (BenchmarkListEncoding). There is no switch: the bytes are the library's
// (TestListsAreEncodedAsEver).

const (
	// encodedObjects is the number of cached objects, usually about a kilobyte each.
	encodedObjects = 16384
	// encodedObjectBytes is the size limit of a cached object, encodedBytes of all together.
	encodedObjectBytes, encodedBytes = 8 << 10, 32 << 20
	// listBufferBytes is the size of the write buffer.
	listBufferBytes = 32 << 10
)

// format is the text of a list.
type format int

const (
	compactJSON format = iota
	indentedJSON
	yamlText
)

// listSerializer encodes lists and tables item by item, so that the memory of a response does not depend on the number of items, and with
// cached encodings of the items. It passes everything else to the embedded Serializer.
type listSerializer struct {
	runtime.Serializer
	encoded *listCache
	format  format
}

// listCache has the JSON of objects, up to a number of objects and of bytes.
type listCache struct {
	objects *lru.Cache
	bytes   atomic.Int64
	// adding is held while an object is added.
	adding sync.Mutex
}

func newListCache() *listCache {
	c := &listCache{}
	c.objects = lru.NewWithEvictionFunc(encodedObjects, func(_ lru.Key, data any) { c.bytes.Add(-int64(len(data.([]byte)))) })
	return c
}

// add adds the JSON of an object.
func (c *listCache) add(key encodedKey, data []byte) {
	if len(data) > encodedObjectBytes {
		return
	}
	c.adding.Lock()
	defer c.adding.Unlock()
	if _, ok := c.objects.Get(key); ok {
		return
	}
	for c.bytes.Load()+int64(len(data)) > encodedBytes && c.objects.Len() > 0 {
		c.objects.RemoveOldest()
	}
	c.bytes.Add(int64(len(data)))
	c.objects.Add(key, data)
}

// encodedKey identifies one version of an object in one representation.
type encodedKey struct {
	kind            reflect.Type
	uid             types.UID
	resourceVersion string
}

// Encode writes obj. The library encodes an empty list.
func (s listSerializer) Encode(obj runtime.Object, w io.Writer) error {
	switch table, isTable := obj.(*metav1.Table); {
	case isTable && len(table.Rows) > 0:
		return s.table(table, w)
	case !isTable && meta.IsListType(obj) && meta.LenList(obj) > 0:
		if list, ok := obj.(metav1.ListMetaAccessor); ok {
			if listMeta, ok := list.GetListMeta().(*metav1.ListMeta); ok {
				return s.list(obj, listMeta, w)
			}
		}
	}
	return s.Serializer.Encode(obj, w)
}

// list writes a list.
func (s listSerializer) list(obj runtime.Object, listMeta *metav1.ListMeta, w io.Writer) error {
	gvk := obj.GetObjectKind().GroupVersionKind()
	out, err := s.begin(w, "items", struct {
		Kind            string `json:"kind,omitempty"`
		APIVersion      string `json:"apiVersion,omitempty"`
		metav1.ListMeta `json:"metadata"`
		Items           []any `json:"items"`
	}{gvk.Kind, gvk.GroupVersion().String(), *listMeta, []any{}})
	if err != nil {
		return err
	}
	err = meta.EachListItem(obj, func(item runtime.Object) error {
		data, err := s.item(item)
		if err != nil {
			return err
		}
		return out.item(data)
	})
	if err != nil {
		return err
	}
	return out.end()
}

// table writes a table.
func (s listSerializer) table(table *metav1.Table, w io.Writer) error {
	out, err := s.begin(w, "rows", struct {
		metav1.TypeMeta `json:",inline"`
		metav1.ListMeta `json:"metadata"`
		Columns         []metav1.TableColumnDefinition `json:"columnDefinitions"`
		Rows            []any                          `json:"rows"`
	}{table.TypeMeta, table.ListMeta, table.ColumnDefinitions, []any{}})
	if err != nil {
		return err
	}
	for i := range table.Rows {
		data, err := json.Marshal(&table.Rows[i])
		if err != nil {
			return err
		}
		if err := out.item(data); err != nil {
			return err
		}
	}
	return out.end()
}

// itemWriter writes a list item by item. Its bufio.Writer keeps the first write error and returns it from all later writes and from Flush.
type itemWriter struct {
	*bufio.Writer
	format format
	// tail follows the items.
	tail []byte
	// later is true after the first item, scratch has the text of an item.
	later   bool
	scratch bytes.Buffer
}

// begin writes the part of a list before its items. The head has an empty list in their place, as its last field.
func (s listSerializer) begin(w io.Writer, field string, head any) (*itemWriter, error) {
	text, err := json.Marshal(head)
	if err != nil {
		return nil, fmt.Errorf("encode metadata of list: %w", err)
	}
	out := &itemWriter{format: s.format}
	var before []byte
	switch s.format {
	case compactJSON:
		before, out.tail = bytes.TrimSuffix(text, []byte("]}")), []byte("]}\n")
	case indentedJSON:
		if err := json.Indent(&out.scratch, text, "", "  "); err != nil {
			return nil, fmt.Errorf("encode metadata of list: %w", err)
		}
		before, out.tail = bytes.TrimSuffix(bytes.Clone(out.scratch.Bytes()), []byte("]\n}")), []byte("\n  ]\n}")
	case yamlText:
		if text, err = yaml.JSONToYAML(text); err != nil {
			return nil, fmt.Errorf("encode metadata of list: %w", err)
		}
		// Only fields of the list itself begin a line.
		var found bool
		if before, out.tail, found = bytes.Cut(text, []byte("\n"+field+": []\n")); !found {
			return nil, fmt.Errorf("encode metadata of list: no field %s", field)
		}
		before = append(bytes.Clone(before), "\n"+field+":\n"...)
	}
	// A first write of one byte marks a chunked response for the library, which then buffers it until it can decide whether
	// to compress it.
	if _, err := w.Write(before[:1]); err != nil {
		return nil, err
	}
	out.Writer = bufio.NewWriterSize(w, listBufferBytes)
	_, err = out.Write(before[1:])
	return out, err
}

// item writes an item, which is JSON.
func (w *itemWriter) item(data []byte) error {
	separator := ""
	switch w.format {
	case compactJSON:
		if w.later {
			separator = ","
		}
	case indentedJSON:
		if separator = "\n    "; w.later {
			separator = ",\n    "
		}
		w.scratch.Reset()
		if err := json.Indent(&w.scratch, data, "    ", "  "); err != nil {
			return err
		}
		data = w.scratch.Bytes()
	case yamlText:
		text, err := yaml.JSONToYAML(data)
		if err != nil {
			return err
		}
		w.scratch.Reset()
		indent := "- "
		for line := range bytes.Lines(text) {
			if len(line) > 1 {
				w.scratch.WriteString(indent)
			}
			indent = "  "
			w.scratch.Write(line)
		}
		data = w.scratch.Bytes()
	}
	w.later = true
	_, _ = w.WriteString(separator)
	_, err := w.Write(data)
	return err
}

// end writes the part after the items.
func (w *itemWriter) end() error {
	_, _ = w.Write(w.tail)
	return w.Flush()
}

// item returns an object as JSON.
func (s listSerializer) item(item runtime.Object) ([]byte, error) {
	object, err := meta.Accessor(item)
	if err != nil || object.GetUID() == "" || object.GetResourceVersion() == "" {
		return json.Marshal(item)
	}
	key := encodedKey{reflect.TypeOf(item), object.GetUID(), object.GetResourceVersion()}
	if data, ok := s.encoded.objects.Get(key); ok {
		return data.([]byte), nil
	}
	data, err := json.Marshal(item)
	if err == nil {
		s.encoded.add(key, data)
	}
	return data, err
}

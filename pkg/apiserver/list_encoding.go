package apiserver

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// An object that is stored does not change until its resourceVersion does, so its JSON is made once and
// serves every list it is in. Our kinds have many small fields, which cost several times what the same
// number of bytes costs in a ConfigMap.

const (
	// encodedObjects is how many encoded objects are kept; usually about a kilobyte each.
	encodedObjects = 16384
	// encodedObjectBytes is how large an object may be to be kept.
	encodedObjectBytes = 8 << 10
	// listBufferBytes is how much of a list is written at a time.
	listBufferBytes = 32 << 10
)

// listSerializer encodes lists to JSON, from objects that it has encoded before where it can. Everything
// else is the serializer's.
type listSerializer struct {
	runtime.Serializer
	encoded *lru.Cache
}

func newListCache() *lru.Cache { return lru.New(encodedObjects) }

// encodedKey names an object in one state, in one representation.
type encodedKey struct {
	kind            reflect.Type
	uid             types.UID
	resourceVersion string
}

// Encode writes obj as JSON.
func (s listSerializer) Encode(obj runtime.Object, w io.Writer) error {
	if !meta.IsListType(obj) {
		return s.Serializer.Encode(obj, w)
	}
	list, ok := obj.(metav1.ListMetaAccessor)
	if !ok {
		return s.Serializer.Encode(obj, w)
	}
	listMeta, ok := list.GetListMeta().(*metav1.ListMeta)
	if !ok {
		return s.Serializer.Encode(obj, w)
	}
	gvk := obj.GetObjectKind().GroupVersionKind()
	head, err := json.Marshal(struct {
		Kind            string `json:"kind,omitempty"`
		APIVersion      string `json:"apiVersion,omitempty"`
		metav1.ListMeta `json:"metadata"`
	}{gvk.Kind, gvk.GroupVersion().String(), *listMeta})
	if err != nil {
		return fmt.Errorf("encoding the metadata of a list: %w", err)
	}
	// A first write of one byte is how the library recognizes an answer in pieces, which it then gathers until
	// there is enough to decide whether to compress it.
	if _, err := w.Write(head[:1]); err != nil {
		return err
	}
	// It keeps the first error of a write, and returns it from all later ones and from Flush.
	out := bufio.NewWriterSize(w, listBufferBytes)
	_, _ = out.Write(bytes.TrimSuffix(head[1:], []byte("}")))
	_, _ = out.WriteString(`,"items":[`)
	first := true
	err = meta.EachListItem(obj, func(item runtime.Object) error {
		if !first {
			_ = out.WriteByte(',')
		}
		first = false
		data, err := s.item(item)
		if err != nil {
			return err
		}
		_, err = out.Write(data)
		return err
	})
	if err != nil {
		return err
	}
	_, _ = out.WriteString("]}\n")
	return out.Flush()
}

// item returns an object as JSON.
func (s listSerializer) item(item runtime.Object) ([]byte, error) {
	object, err := meta.Accessor(item)
	if err != nil || object.GetUID() == "" || object.GetResourceVersion() == "" {
		return json.Marshal(item)
	}
	key := encodedKey{reflect.TypeOf(item), object.GetUID(), object.GetResourceVersion()}
	if data, ok := s.encoded.Get(key); ok {
		return data.([]byte), nil
	}
	data, err := json.Marshal(item)
	if err == nil && len(data) <= encodedObjectBytes {
		s.encoded.Add(key, data)
	}
	return data, err
}

package apiserver

import (
	"bytes"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// storedJSON decodes the JSON of objects in etcd, which this server encoded. It needs a quarter of the time of the decoder of requests, which
// reads a text four times: a restart decodes all objects, and each change is decoded for the watch cache. Everything else is decoded by that
// decoder: JSON of another form, and JSON that json/v2 rejects.
type storedJSON struct {
	scheme *runtime.Scheme
	// requests is the decoder of requests.
	requests runtime.Decoder
}

// storedOptions accept what the encoder writes for every value that a request can have.
var storedOptions = json.JoinOptions(jsontext.AllowInvalidUTF8(true), jsontext.AllowDuplicateNames(true))

// Decode implements runtime.Decoder.
func (d storedJSON) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	gvk, ok := leadingKind(data)
	if !ok {
		return d.requests.Decode(data, defaults, into)
	}
	obj, err := runtime.UseOrCreateObject(d.scheme, d.scheme, gvk, into)
	if err != nil || json.Unmarshal(data, obj, storedOptions) != nil {
		return d.requests.Decode(data, defaults, into)
	}
	return obj, &gvk, nil
}

// leadingKind returns the kind and the version with which the JSON of an encoded object begins.
func leadingKind(data []byte) (gvk schema.GroupVersionKind, ok bool) {
	const quote = `"`
	kind, rest, ok := bytes.Cut(data, []byte(`","apiVersion":"`))
	if !ok {
		return gvk, false
	}
	if kind, ok = bytes.CutPrefix(kind, []byte(`{"kind":"`)); !ok {
		return gvk, false
	}
	version, _, ok := bytes.Cut(rest, []byte(quote))
	if !ok || bytes.ContainsAny(kind, `"\`) || bytes.ContainsAny(version, `\`) {
		return gvk, false
	}
	return schema.FromAPIVersionAndKind(string(version), string(kind)), true
}

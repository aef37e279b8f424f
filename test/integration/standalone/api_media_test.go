package standalone

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"sigs.k8s.io/yaml"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// TestProtobufFallsBackToJSON checks that clients that prefer protobuf, such as typed clients of client-go, receive JSON
// instead of 406 (P15).
func TestProtobufFallsBackToJSON(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		obj := stored(t, k)
		for _, path := range []string{pathOf(obj), k.Collection(obj.GetNamespace()), pathOf(obj) + "/status"} {
			for _, accept := range []string{"application/vnd.kubernetes.protobuf,application/json", "application/vnd.kubernetes.protobuf;q=1.0, */*;q=0.1", "*/*"} {
				response := admin.Do(t, harness.Request{Method: "GET", Path: path, Accept: accept})
				if got := response.Header.Get("Content-Type"); response.Code != http.StatusOK || got != "application/json" || !json.Valid(response.Body) {
					t.Errorf("GET %s with %s: code %d, %s", path, accept, response.Code, got)
				}
			}
		}
		// Protobuf without an alternative is not available.
		response := admin.Do(t, harness.Request{Method: "GET", Path: pathOf(obj), Accept: "application/vnd.kubernetes.protobuf"})
		if response.Code != http.StatusNotAcceptable {
			t.Errorf("only protobuf: code %d, want 406", response.Code)
		}
		response = admin.Do(t, harness.Request{
			Method: "GET", Path: k.Collection(obj.GetNamespace()),
			Accept: "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
		})
		if response.Code != http.StatusOK || !strings.Contains(string(response.Body), `"kind":"PartialObjectMetadataList"`) {
			t.Errorf("only metadata: code %d: %.200s", response.Code, response.Body)
		}
	})
}

// TestYAML covers conventions Serialization-2.
func TestYAML(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := k.Object(namespace(t), "a")
		manifest, err := yaml.Marshal(obj.Object)
		if err != nil {
			t.Fatal(err)
		}
		response := admin.Do(t, harness.Request{
			Method: "POST", Path: k.Collection(obj.GetNamespace()), ContentType: "application/yaml", Accept: "application/yaml", Body: manifest,
		})
		if response.Code != http.StatusCreated || response.Header.Get("Content-Type") != "application/yaml" {
			t.Fatalf("code %d, %s: %s", response.Code, response.Header.Get("Content-Type"), response.Body)
		}
		var answer object
		if err := yaml.Unmarshal(response.Body, &answer); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(normal(reread(t, obj).Object), normal(answer)); diff != "" {
			t.Errorf("answer (-stored +got):\n%s", diff)
		}
	})
}

// TestCBOR checks that CBOR is served if the library enables it and otherwise rejected like any unknown type, and that an
// object stored by CBOR is the same.
// It covers conventions Serialization-2.
func TestCBOR(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		obj := k.Object(namespace(t), "a")
		body, err := cborOf(obj)
		if err != nil {
			t.Fatal(err)
		}
		response := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(obj.GetNamespace()), ContentType: "application/cbor", Body: body})
		switch response.Code {
		case http.StatusUnsupportedMediaType:
			wantStatus(t, response, http.StatusUnsupportedMediaType, "UnsupportedMediaType")
			response = admin.Do(t, harness.Request{Method: "GET", Path: k.Collection(obj.GetNamespace()), Accept: "application/cbor,application/json"})
			if response.Code != http.StatusOK || response.Header.Get("Content-Type") != "application/json" {
				t.Errorf("code %d, %s", response.Code, response.Header.Get("Content-Type"))
			}
		case http.StatusCreated:
			if got := reread(t, obj); got.GetName() != "a" {
				t.Errorf("stored is %v", got.Object)
			}
		default:
			t.Errorf("code %d: %s", response.Code, response.Body)
		}
	})
}

func cborOf(obj *unstructured.Unstructured) ([]byte, error) {
	var buffer bytes.Buffer
	scheme := runtime.NewScheme()
	err := cbor.NewSerializer(scheme, scheme).Encode(obj, &buffer)
	return buffer.Bytes(), err
}

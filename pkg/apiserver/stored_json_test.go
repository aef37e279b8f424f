package apiserver

import (
	"math/rand"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// TestStoredJSON decodes random objects of every stored kind as the decoder of requests does.
func TestStoredJSON(t *testing.T) {
	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	// Without the decoder of requests, it panics instead of using that one.
	stored := codecs.DecoderToVersion(storedJSON{scheme: scheme}, runtime.InternalGroupVersioner)
	requests := codecs.LegacyCodec(storedVersions()...)
	fill := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, fillers), rand.NewSource(rand.Int63()), codecs)
	for _, gv := range storedVersions() {
		for kind := range scheme.KnownTypes(gv) {
			if isMeta(kind) || strings.HasSuffix(kind, "List") || !scheme.Recognizes(schema.GroupVersion{Group: gv.Group, Version: runtime.APIVersionInternal}.WithKind(kind)) {
				continue
			}
			t.Run(gv.Group+"/"+kind, func(t *testing.T) {
				for range 50 {
					obj, err := scheme.New(gv.WithKind(kind))
					if err != nil {
						t.Fatal(err)
					}
					fill.Fill(obj)
					content, err := runtime.Encode(requests, obj)
					if err != nil {
						t.Fatal(err)
					}
					if gvk, ok := leadingKind(content); !ok || gvk != gv.WithKind(kind) {
						t.Fatalf("begins with the kind %v: %s", gvk, content)
					}
					expected, decoded := decodeInto(t, scheme, gv.WithKind(kind), requests, content), decodeInto(t, scheme, gv.WithKind(kind), stored, content)
					if !reflect.DeepEqual(expected, decoded) {
						t.Fatalf("(-requests +stored):\n%s", cmp.Diff(expected, decoded))
					}
				}
			})
		}
	}
}

// decodeInto decodes an object as the storage does, into a new object.
func decodeInto(t *testing.T, scheme *runtime.Scheme, gvk schema.GroupVersionKind, codec runtime.Decoder, content []byte) runtime.Object {
	t.Helper()
	into, err := scheme.New(gvk)
	if err != nil {
		t.Fatal(err)
	}
	decoded, _, err := codec.Decode(content, nil, into)
	if err != nil {
		t.Fatal(err)
	}
	if decoded != into {
		t.Fatal("decoded into another object")
	}
	return decoded
}

// TestStoredJSONDecodesOtherForms decodes JSON that this server does not write, and values that json/v2 rejects by default.
func TestStoredJSONDecodesOtherForms(t *testing.T) {
	scheme := newScheme()
	codec := storageCodec(scheme, serializer.NewCodecFactory(scheme))
	for name, content := range map[string]string{
		"another order":    `{"metadata":{"name":"a"},"apiVersion":"serving.knative.dev/v1","kind":"Service"}`,
		"spaces":           `{ "kind": "Service", "apiVersion": "serving.knative.dev/v1", "metadata": {"name": "a"} }`,
		"an unknown field": `{"kind":"Service","apiVersion":"serving.knative.dev/v1","metadata":{"name":"a"},"removed":{"in":["a","later",1]}}`,
		"another case":     `{"kind":"Service","apiVersion":"serving.knative.dev/v1","metadata":{"name":"a","Name":"b"},"Spec":{}}`,
		"a duplicate":      `{"kind":"Service","apiVersion":"serving.knative.dev/v1","metadata":{"name":"b","name":"a"}}`,
		"invalid UTF-8":    "{\"kind\":\"Service\",\"apiVersion\":\"serving.knative.dev/v1\",\"metadata\":{\"name\":\"a\",\"labels\":{\"a\":\"\xff\"}}}",
	} {
		t.Run(name, func(t *testing.T) {
			obj, err := runtime.Decode(codec, []byte(content))
			if err != nil {
				t.Fatal(err)
			}
			if service, ok := obj.(*servingv1.Service); !ok || service.Name != "a" {
				t.Errorf("decoded as %#v", obj)
			}
		})
	}
	for name, content := range map[string]string{
		"empty":           ``,
		"no kind":         `{"apiVersion":"serving.knative.dev/v1"}`,
		"an unknown kind": `{"kind":"Sidecar","apiVersion":"serving.knative.dev/v1"}`,
		"another type":    `{"kind":"Service","apiVersion":"serving.knative.dev/v1","metadata":{"name":1}}`,
		"truncated":       `{"kind":"Service","apiVersion":"serving.knative.dev/v1","metadata":{"name":"a"`,
		"followed":        `{"kind":"Service","apiVersion":"serving.knative.dev/v1"}{}`,
	} {
		t.Run(name, func(t *testing.T) {
			if obj, err := runtime.Decode(codec, []byte(content)); err == nil {
				t.Errorf("decoded as %#v", obj)
			}
		})
	}
}

// BenchmarkStoredJSON decodes stored objects with the decoder of requests and the one of stored objects.
func BenchmarkStoredJSON(b *testing.B) {
	scheme := newScheme()
	codecs := serializer.NewCodecFactory(scheme)
	fields := metav1.FieldsV1{}
	fields.SetRawString(`{"f:status":{"f:conditions":{".":{}` + strings.Repeat(`,"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:status":{},"f:type":{}}`, 10) + `}}}`)
	meta := metav1.ObjectMeta{
		Namespace: "default", Name: "hello-00001", UID: "8ba96d4c-1351-41cf-a8ad-4358a9d3628d", Labels: map[string]string{"app": "hello"},
		ManagedFields: slices.Repeat([]metav1.ManagedFieldsEntry{{Manager: "kubectl", Operation: metav1.ManagedFieldsOperationApply, FieldsType: "FieldsV1", FieldsV1: &fields}}, 2),
	}
	for name, obj := range map[string]runtime.Object{
		"Revision": &servingv1.Revision{ObjectMeta: meta, Spec: servingv1.RevisionSpec{PodSpec: corev1.PodSpec{Containers: []corev1.Container{{Name: "user-container", Image: "hello"}}}}},
		"Trigger":  &eventingv1.Trigger{ObjectMeta: meta, Spec: eventingv1.TriggerSpec{Broker: "default"}},
	} {
		content, err := runtime.Encode(storageCodec(scheme, codecs), obj)
		if err != nil {
			b.Fatal(err)
		}
		for decoder, codec := range map[string]runtime.Codec{"requests": codecs.LegacyCodec(storedVersions()...), "stored": storageCodec(scheme, codecs)} {
			b.Run(name+"/"+decoder, func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(content)))
				for b.Loop() {
					if _, err := runtime.Decode(codec, content); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

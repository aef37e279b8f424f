package apiserver

import (
	"math/rand"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	"k8s.io/apimachinery/pkg/api/equality"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"sigs.k8s.io/randfill"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// TestRoundTrip encodes and decodes random objects of every kind in JSON, YAML and CBOR: no field is lost.
func TestRoundTrip(t *testing.T) {
	scheme := newPublishedScheme()
	codecs := serializer.NewCodecFactory(scheme)
	fill := fuzzer.FuzzerFor(fuzzer.MergeFuzzerFuncs(metafuzzer.Funcs, fillers), rand.NewSource(rand.Int63()), codecs)
	for _, gv := range groupVersions {
		for kind := range scheme.KnownTypes(gv) {
			if isMeta(kind) {
				continue
			}
			t.Run(gv.Group+"/"+kind, func(t *testing.T) {
				roundtrip.RoundTripSpecificKindWithoutProtobuf(t, gv.WithKind(kind), scheme, codecs, fill, nil)
				for name, serializer := range map[string]runtime.Serializer{
					"YAML": json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{Yaml: true, Strict: true}),
					"CBOR": cbor.NewSerializer(scheme, scheme, cbor.Strict(true)),
				} {
					t.Run(name, func(t *testing.T) { roundTrip(t, scheme, gv.WithKind(kind), serializer, fill) })
				}
			})
		}
	}
}

// roundTrip encodes and decodes random objects of a kind with a serializer.
func roundTrip(t *testing.T, scheme *runtime.Scheme, gvk schema.GroupVersionKind, serializer runtime.Serializer, fill *randfill.Filler) {
	for range 20 {
		obj, err := scheme.New(gvk)
		if err != nil {
			t.Fatal(err)
		}
		fill.Fill(obj)
		obj.GetObjectKind().SetGroupVersionKind(gvk)
		content, err := runtime.Encode(serializer, obj)
		if err != nil {
			t.Fatalf("encoding: %v", err)
		}
		decoded, err := runtime.Decode(serializer, content)
		if err != nil {
			t.Fatalf("decoding: %v", err)
		}
		if !equality.Semantic.DeepEqual(obj, decoded) {
			t.Fatalf("(-before +after):\n%s", cmp.Diff(obj, decoded))
		}
	}
}

// isMeta matches kinds that every group has: options and watch events.
func isMeta(kind string) bool {
	switch kind {
	case "ListOptions", "CreateOptions", "UpdateOptions", "PatchOptions", "DeleteOptions", "GetOptions", "WatchEvent", "InternalEvent":
		return true
	}
	return false
}

// fillers are for fields whose random values a client could not send.
func fillers(serializer.CodecFactory) []any {
	return []any{
		func(s *messagingv1.ChannelTemplateSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			if s.Spec != nil {
				s.Spec = &runtime.RawExtension{Raw: []byte(`{"replicas":3}`)}
			}
		},
		func(s *eventingv1.TriggerMatchSpec, _ randfill.Continue) {
			s.Event = runtime.RawExtension{Raw: []byte(`{"id":"1"}`)}
		},
	}
}

package apiserver

import (
	"math/rand"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting/fuzzer"
	"k8s.io/apimachinery/pkg/api/apitesting/roundtrip"
	metafuzzer "k8s.io/apimachinery/pkg/apis/meta/fuzzer"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"sigs.k8s.io/randfill"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
)

// TestRoundTrip sends random objects of every kind through JSON, YAML and CBOR and back: nothing is lost.
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
			})
		}
	}
}

// isMeta tells of kinds that every group has: options and the events of a watch.
func isMeta(kind string) bool {
	switch kind {
	case "ListOptions", "CreateOptions", "UpdateOptions", "PatchOptions", "DeleteOptions", "GetOptions", "WatchEvent", "InternalEvent":
		return true
	}
	return false
}

// fillers are for fields that random values would make something no client can send.
func fillers(serializer.CodecFactory) []any {
	return []any{
		func(s *messagingv1.ChannelTemplateSpec, c randfill.Continue) {
			c.FillNoCustom(s)
			if s.Spec != nil {
				s.Spec = &runtime.RawExtension{Raw: []byte(`{"replicas":3}`)}
			}
		},
	}
}

package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

func jsonSerializer(t testing.TB) listSerializer {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(newScheme()).SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		t.Fatal("no JSON")
	}
	return listSerializer{info.Serializer, newListCache()}
}

func routeNamed(name, uid, resourceVersion string) servingv1.Route {
	return servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: resourceVersion}}
}

// With and without cached items, a list has the same encoding as from the library.
func TestListsAreEncodedAsEver(t *testing.T) {
	kind := metav1.TypeMeta{Kind: "RouteList", APIVersion: "serving.knative.dev/v1"}
	tests := []struct {
		name string
		list runtime.Object
	}{
		{"nothing", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{}}},
		{"one", &servingv1.RouteList{TypeMeta: kind, ListMeta: metav1.ListMeta{ResourceVersion: "5"}, Items: []servingv1.Route{routeNamed("a", "1", "1")}}},
		{"again, and a second", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{routeNamed("a", "1", "1"), routeNamed("<b>", "2", "2")}}},
		{"in a later state", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{routeNamed("a-changed", "1", "3")}}},
		{"not stored", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{routeNamed("c", "1", "")}}},
		{"a page", &servingv1.RouteList{TypeMeta: kind, ListMeta: metav1.ListMeta{Continue: "more", RemainingItemCount: ptr.To[int64](3)}, Items: []servingv1.Route{}}},
		{"in another representation", &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
			Items:    []metav1.PartialObjectMetadata{{ObjectMeta: routeNamed("a", "1", "1").ObjectMeta}},
		}},
		{"no list", ptr.To(routeNamed("a", "1", "1"))},
	}
	ours := jsonSerializer(t)
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			var want, got bytes.Buffer
			if err := ours.Serializer.Encode(test.list, &want); err != nil {
				t.Fatal(err)
			}
			if err := ours.Encode(test.list, &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want.String(), got.String()); diff != "" {
				t.Errorf("the list differs from the library's encoding (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLargeObjectsAreNotKept(t *testing.T) {
	ours := jsonSerializer(t)
	large := routeNamed("a", "1", "1")
	large.Annotations = map[string]string{"a": string(make([]byte, encodedObjectBytes))}
	if err := ours.Encode(&servingv1.RouteList{Items: []servingv1.Route{large, routeNamed("b", "2", "2")}}, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if got := ours.encoded.Len(); got != 1 {
		t.Errorf("%d objects are kept, want the small one alone", got)
	}
}

// firstWrite records the length of the first write.
type firstWrite struct{ length int }

func (w *firstWrite) Write(b []byte) (int, error) {
	if w.length == 0 {
		w.length = len(b)
	}
	return len(b), nil
}

// The library compresses chunked responses only if the first write has one byte.
func TestListsAreCompressible(t *testing.T) {
	w := &firstWrite{}
	if err := jsonSerializer(t).Encode(&servingv1.RouteList{Items: []servingv1.Route{routeNamed("a", "1", "1")}}, w); err != nil {
		t.Fatal(err)
	}
	if w.length != 1 {
		t.Errorf("the first write has %d bytes, want 1", w.length)
	}
}

// BenchmarkListEncoding encodes a list of 500 Services, with the library and with cached encodings of the items.
func BenchmarkListEncoding(b *testing.B) {
	list := &servingv1.ServiceList{TypeMeta: metav1.TypeMeta{Kind: "ServiceList", APIVersion: "serving.knative.dev/v1"}}
	for i := range 500 {
		service := servingv1.Service{
			TypeMeta:   metav1.TypeMeta{Kind: "Service", APIVersion: "serving.knative.dev/v1"},
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("service-%d", i), Namespace: "default", UID: types.UID(fmt.Sprint(i)), ResourceVersion: "1"},
		}
		service.Spec.Template.Spec.Containers = []corev1.Container{{Name: "user-container", Image: "example.com/hello@sha256:0"}}
		service.Spec.Traffic = []servingv1.TrafficTarget{{LatestRevision: ptr.To(true), Percent: ptr.To[int64](100)}}
		service.Status.LatestReadyRevisionName = service.Name + "-00001"
		list.Items = append(list.Items, service)
	}
	cached := jsonSerializer(b)
	for name, serializer := range map[string]runtime.Encoder{"library": cached.Serializer, "cached": cached} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := serializer.Encode(list, io.Discard); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

package apiserver

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

func jsonSerializer(t testing.TB) listSerializer {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(serializer.NewCodecFactory(newScheme()).SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		t.Fatal("no JSON")
	}
	return listSerializer{info.Serializer, newListCache(), compactJSON}
}

// serializers returns the serializers of lists by their names.
func serializers(t testing.TB) map[string]listSerializer {
	t.Helper()
	found, cache := map[string]listSerializer{}, newListCache()
	for _, info := range newNegotiatedSerializer(serializer.NewCodecFactory(newScheme()), cache).SupportedMediaTypes() {
		for name, s := range map[string]runtime.Serializer{"": info.Serializer, ", pretty": info.PrettySerializer} {
			if s, ok := s.(listSerializer); ok {
				found[info.MediaType+name] = s
			}
		}
	}
	if len(found) != 3 {
		t.Fatalf("%d serializers of lists, want JSON, indented JSON and YAML", len(found))
	}
	return found
}

func routeNamed(name, uid, resourceVersion string) servingv1.Route {
	return servingv1.Route{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), ResourceVersion: resourceVersion}}
}

// With and without cached items, a list has the same encoding as from the library, and the same content in YAML.
func TestListsAreEncodedAsEver(t *testing.T) {
	kind := metav1.TypeMeta{Kind: "RouteList", APIVersion: "serving.knative.dev/v1"}
	tests := []struct {
		name string
		list runtime.Object
	}{
		{"nothing", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{}}},
		{"one", &servingv1.RouteList{TypeMeta: kind, ListMeta: metav1.ListMeta{ResourceVersion: "5"}, Items: []servingv1.Route{routeNamed("a", "1", "1")}}},
		{"again, and a second", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{routeNamed("a", "1", "1"), routeNamed("<b>", "2", "2")}}},
		{"in a later version", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{routeNamed("a-changed", "1", "3")}}},
		{"not stored", &servingv1.RouteList{TypeMeta: kind, Items: []servingv1.Route{routeNamed("c", "1", "")}}},
		{"a page", &servingv1.RouteList{TypeMeta: kind, ListMeta: metav1.ListMeta{Continue: "more", RemainingItemCount: ptr.To[int64](3)}, Items: []servingv1.Route{}}},
		{"in another representation", &metav1.PartialObjectMetadataList{
			TypeMeta: metav1.TypeMeta{Kind: "PartialObjectMetadataList", APIVersion: "meta.k8s.io/v1"},
			Items:    []metav1.PartialObjectMetadata{{ObjectMeta: routeNamed("a", "1", "1").ObjectMeta}},
		}},
		{"texts", &servingv1.RouteList{TypeMeta: kind, ListMeta: metav1.ListMeta{ResourceVersion: "5\nitems: []\n"}, Items: []servingv1.Route{annotated("d", texts)}}},
		{"a table", &metav1.Table{
			TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}, ListMeta: metav1.ListMeta{ResourceVersion: "5"},
			ColumnDefinitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string"}, {Name: "Age", Type: "date", Priority: 1}},
			Rows: []metav1.TableRow{
				{Cells: []any{"a", int64(1), nil}, Object: runtime.RawExtension{Object: ptr.To(annotated("d", texts))}},
				{Cells: []any{"b", true, 1.5}, Object: runtime.RawExtension{Object: &metav1.PartialObjectMetadata{ObjectMeta: routeNamed("a", "1", "1").ObjectMeta}}},
			},
		}},
		{"an empty table", &metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}}},
		{"no list", ptr.To(routeNamed("a", "1", "1"))},
	}
	for name, ours := range serializers(t) {
		for _, test := range tests {
			t.Run(name+": "+test.name, func(t *testing.T) {
				var want, got bytes.Buffer
				if err := ours.Serializer.Encode(test.list, &want); err != nil {
					t.Fatal(err)
				}
				if err := ours.Encode(test.list, &got); err != nil {
					t.Fatal(err)
				}
				if ours.format == yamlText {
					want, got = parsed(t, want), parsed(t, got)
				}
				if diff := cmp.Diff(want.String(), got.String()); diff != "" {
					t.Errorf("the list differs from the library's encoding (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// parsed returns the JSON of YAML. The library breaks lines by their indentation, so only the content is the same.
func parsed(t *testing.T, text bytes.Buffer) bytes.Buffer {
	t.Helper()
	data, err := yaml.YAMLToJSONStrict(text.Bytes())
	if err != nil {
		t.Errorf("%v:\n%s", err, text.String())
	}
	return *bytes.NewBuffer(data)
}

// texts are values whose text differs most between encodings.
var texts = []string{
	"", " ", "a b", "yes", "1", "0x1", "null", "~", "- a", "a: b", "#", "a #b", "'", `"`, "a\nb", "a\nb\n", "a\n\n\nb\n\n", " a\n  b\n", "\n", "\na", "a\n b", "a\tb\n", "\t",
	"items: []", "a\nitems: []\nb", "rows: []\n", "<b>&", "\u2028", "\u00e9", "|", ">-", "%", "@a", "!a", "&a", "*a", "{", "[]", "2026-01-01", strings.Repeat("long ", 200),
	strings.Repeat("long ", 200) + "\n  " + strings.Repeat("x", 200),
}

// annotated returns a Route with values in annotations.
func annotated(name string, values []string) servingv1.Route {
	route := routeNamed(name, "9", "9")
	route.Annotations = map[string]string{}
	for i, value := range values {
		route.Annotations[fmt.Sprint("a", i)] = value
	}
	return route
}

// most records the size of the largest write.
type most struct{ written, largest int }

func (w *most) Write(b []byte) (int, error) {
	w.written += len(b)
	w.largest = max(w.largest, len(b))
	return len(b), nil
}

// TestMemoryOfLists checks that the memory for encoding a list or table does not depend on the number of its items, in all encodings.
func TestMemoryOfLists(t *testing.T) {
	const items, size = 100, 100 << 10
	// Many rows share one object, so that only the encoding takes memory.
	route := annotated("a", []string{strings.Repeat("x", size)})
	list := &servingv1.RouteList{TypeMeta: metav1.TypeMeta{Kind: "RouteList", APIVersion: "serving.knative.dev/v1"}}
	table := &metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: "meta.k8s.io/v1"}}
	for range items {
		list.Items = append(list.Items, route)
		table.Rows = append(table.Rows, metav1.TableRow{Object: runtime.RawExtension{Object: &route}})
	}
	for name, s := range serializers(t) {
		for _, obj := range []runtime.Object{list, table} {
			w := &most{}
			if err := s.Encode(obj, w); err != nil {
				t.Fatal(err)
			}
			if w.written < items*size || w.largest > 2*size {
				t.Errorf("%s of %T: the largest of all writes has %d bytes of %d, so the list is encoded as a whole", name, obj, w.largest, w.written)
			}
		}
	}
}

// TestMemoryOfCachedObjects checks that the cached encodings have a size limit, and that the latest ones stay.
func TestMemoryOfCachedObjects(t *testing.T) {
	s := jsonSerializer(t)
	text := strings.Repeat("x", encodedObjectBytes/2)
	for i := range 2 * encodedBytes / len(text) {
		route := routeNamed("a", fmt.Sprint(i), "1")
		route.Annotations = map[string]string{"a": text}
		for range 2 {
			if _, err := s.item(&route); err != nil {
				t.Fatal(err)
			}
		}
	}
	bytes, objects := s.encoded.bytes.Load(), s.encoded.objects.Len()
	if bytes > encodedBytes || bytes < encodedBytes*9/10 || int64(objects) < encodedBytes/encodedObjectBytes || int64(objects)*int64(len(text)) > bytes {
		t.Errorf("%d objects of %d bytes are cached, the limit is %d", objects, bytes, encodedBytes)
	}
}

func TestLargeObjectsAreNotKept(t *testing.T) {
	ours := jsonSerializer(t)
	large := routeNamed("a", "1", "1")
	large.Annotations = map[string]string{"a": string(make([]byte, encodedObjectBytes))}
	if err := ours.Encode(&servingv1.RouteList{Items: []servingv1.Route{large, routeNamed("b", "2", "2")}}, &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	if got := ours.encoded.objects.Len(); got != 1 {
		t.Errorf("%d objects are cached, want only the small one", got)
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

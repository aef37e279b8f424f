package standalone

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// storedFixtures are objects as stored in etcd, by the names of their files in testdata/stored: one of each kind as this
// version stores it, and one (-sparse) as a version with fewer defaults would. They are frozen: users have such data, so a
// build that cannot read them must not be released (P22).
func storedFixtures(t *testing.T) map[string]*unstructured.Unstructured {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("testdata", "stored", "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	fixtures := map[string]*unstructured.Unstructured{}
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		obj := &unstructured.Unstructured{}
		if err := obj.UnmarshalJSON(content); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		fixtures[strings.TrimSuffix(filepath.Base(file), ".json")] = obj
	}
	if want := 2 * len(harness.AllKinds()); len(fixtures) != want {
		t.Fatalf("got %d fixtures, want %d", len(fixtures), want)
	}
	return fixtures
}

// putStored stores the fixtures in an etcd under the keys of the server.
func putStored(t *testing.T, dir string, fixtures map[string]*unstructured.Unstructured) {
	t.Helper()
	embedded, err := etcd.Start(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer embedded.Stop()
	client, err := clientv3.New(clientv3.Config{Endpoints: embedded.Endpoints()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, obj := range fixtures {
		k := harness.KindOf(obj.GetKind())
		key := strings.Join([]string{"/registry/knative", k.Group, k.Resource, obj.GetNamespace(), obj.GetName()}, "/")
		content, err := json.Marshal(obj.Object)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := client.Put(t.Context(), key, string(content)); err != nil {
			t.Fatal(err)
		}
	}
}

// defaulted is a sparse fixture as read: reading sets defaults, except in Revisions, which never change (serving 5.3-1).
func defaulted(kind string, stored object) object {
	pod := object{
		"containerConcurrency": int64(0), "timeoutSeconds": int64(300),
		"containers": []any{object{
			"name": "user-container", "image": "registry.example.com/hello", "resources": object{},
			"readinessProbe": object{"successThreshold": int64(1), "tcpSocket": object{"port": int64(0)}},
		}},
	}
	switch kind {
	case "Service":
		return object{
			"spec": object{
				"template": object{"metadata": object{}, "spec": pod},
				"traffic":  []any{object{"latestRevision": true, "percent": int64(100)}},
			},
		}
	case "DomainMapping":
		return object{"spec": object{"ref": object{"namespace": "shop"}}}
	case "Configuration":
		return object{"spec": object{"template": object{"metadata": object{}, "spec": pod}}}
	case "Revision":
		return object{"spec": object{"containers": []any{object{"name": "", "image": "registry.example.com/hello", "resources": object{}}}}}
	case "Route":
		return object{"spec": object{"traffic": []any{object{"configurationName": "a-sparse", "latestRevision": true, "percent": int64(100)}}}}
	case "Broker":
		return object{
			"spec":     object{"config": object{}},
			"metadata": object{"annotations": object{"eventing.knative.dev/broker.class": "JetStreamBroker"}},
		}
	case "Trigger":
		return object{
			"spec":     object{"filter": object{}},
			"metadata": object{"labels": object{"eventing.knative.dev/broker": "default"}},
		}
	case "Channel":
		return object{"spec": object{"channelTemplate": object{"apiVersion": "messaging.knative.dev/v1", "kind": "JetStreamChannel"}}}
	}
	return nil
}

func TestFrozenStoredObjects(t *testing.T) {
	dir := t.TempDir()
	fixtures := storedFixtures(t)
	putStored(t, dir, fixtures)
	clients := clientsOf(t, harness.RunAPI(t, dir))
	for name, fixture := range fixtures {
		t.Run(name, func(t *testing.T) {
			want := normal(fixture.Object)
			if strings.HasSuffix(name, "-sparse") {
				want = merged(want, defaulted(fixture.GetKind(), want))
			}
			if fixture.GetKind() == "Channel" {
				// The fixtures are older than this default.
				want = merged(want, object{"metadata": object{"annotations": object{"messaging.knative.dev/subscribable": "v1"}}})
			}
			read := clients.Do(t, harness.Request{Method: "GET", Path: pathOf(fixture)}).Object(t)
			version := read.GetResourceVersion()
			unstructured.RemoveNestedField(read.Object, "metadata", "resourceVersion")
			if diff := cmp.Diff(want, normal(read.Object)); diff != "" {
				t.Errorf("read (-want +got):\n%s", diff)
			}
			// Lists and watches read through the watch cache.
			k := harness.KindOf(fixture.GetKind())
			for _, query := range []string{"", "&resourceVersion=0"} {
				response := clients.Do(t, harness.Request{Method: "GET", Path: k.Collection("shop") + "?fieldSelector=metadata.name%3D" + fixture.GetName() + query})
				list := &unstructured.UnstructuredList{}
				if err := list.UnmarshalJSON(response.Body); err != nil || len(list.Items) != 1 {
					t.Fatalf("%d items, %v", len(list.Items), err)
				}
				if diff := cmp.Diff(want["spec"], normal(list.Items[0].Object)["spec"]); diff != "" {
					t.Errorf("listed (-want +got):\n%s", diff)
				}
			}
			// A write of the metadata does not change the spec.
			written := clients.Do(t, harness.Request{Method: "PATCH", Path: pathOf(fixture), ContentType: mergePatch, Body: label("user")}).Object(t)
			if written.GetGeneration() != 1 || written.GetResourceVersion() == version {
				t.Errorf("after a write of metadata the generation is %d, the version %s", written.GetGeneration(), written.GetResourceVersion())
			}
			if diff := cmp.Diff(want["spec"], normal(written.Object)["spec"]); diff != "" && k.Kind == "Revision" {
				t.Errorf("the spec after a write of metadata (-want +got):\n%s", diff)
			}
		})
	}
}

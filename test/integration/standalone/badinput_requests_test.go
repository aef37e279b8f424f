package standalone

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// wantRefused checks that a response reports a client error in a readable Status.
func wantRefused(t *testing.T, response *harness.Response, codes ...int) {
	t.Helper()
	if len(codes) == 0 && response.Code/100 == 4 {
		codes = []int{response.Code}
	}
	status := response.Status(t)
	if !slices.Contains(codes, response.Code) || int(status.Code) != response.Code || status.Reason == "" || status.Message == "" {
		t.Errorf("code %d, want one of %v; Status %d %s: %.500s", response.Code, codes, status.Code, status.Reason, status.Message)
	}
	if len(status.Message) > 1<<20 {
		t.Errorf("the message has %d bytes", len(status.Message))
	}
}

// TestBadInput checks that the server rejects bad input with the reason, continues to serve, and frees its memory.
func TestBadInput(t *testing.T) {
	own := harness.RunAPI(t, t.TempDir())
	clients := clientsOf(t, own)
	send := func(t *testing.T, in badInput) {
		k := harness.KindOf(in.kind)
		for _, request := range []harness.Request{
			{Method: "POST", Path: k.Collection("shop"), ContentType: in.mediaType, Body: in.body()},
			{Method: "PUT", Path: k.Path("shop", "a"), ContentType: in.mediaType, Body: in.body()},
		} {
			response := clients.Do(t, request)
			if request.Method == "PUT" && response.Code == http.StatusBadRequest {
				continue // a mismatch with the name in the path is reported first
			}
			wantRefused(t, response, in.codes...)
		}
	}
	run := func(t *testing.T) {
		for _, in := range badInputs() {
			t.Run(in.name, func(t *testing.T) { send(t, in) })
			select {
			case <-own.Exited():
				t.Fatalf("the server exited after %s", in.name)
			default:
			}
		}
	}
	// The first round fills caches and pools; the next round must not grow them.
	run(t)
	before := own.ResidentMemory(t)
	for range 2 {
		run(t)
	}
	harness.Eventually(t, "memory is near its earlier value", func() error {
		return wantMemory(own.ResidentMemory(t), before)
	})

	k := harness.KindOf("Service")
	for _, k := range harness.Kinds() {
		if response := clients.Do(t, harness.Request{Method: "GET", Path: k.Collection("")}); !strings.Contains(string(response.Body), `"items":[]`) {
			t.Errorf("an object was stored: %.500s", response.Body)
		}
	}
	clients.Do(t, harness.Request{Method: "POST", Path: k.Collection("shop"), Body: k.Object("shop", "a")}).Object(t)
	if log := own.Log(); strings.Contains(log, "panic") || strings.Contains(log, "goroutine ") {
		t.Error("the server panicked")
	}
}

// TestBadPatchInput does the same with patches.
func TestBadPatchInput(t *testing.T) {
	k := harness.KindOf("Channel")
	obj := stored(t, k)
	deepSpec := nested(`{"a":`, "1", "}", deep)
	for name, request := range map[string]harness.Request{
		"broken merge patch":       {ContentType: mergePatch, Body: `{"spec":`},
		"broken strategic patch":   {ContentType: strategicPatch, Body: `{"spec":`},
		"broken JSON patch":        {ContentType: jsonPatch, Body: `[{"op":`},
		"broken apply":             {ContentType: applyPatch, Body: "a: b: c"},
		"deep merge patch":         {ContentType: mergePatch, Body: `{"spec":{"channelTemplate":{"spec":` + deepSpec + `}}}`},
		"deep strategic patch":     {ContentType: strategicPatch, Body: `{"spec":{"channelTemplate":{"spec":` + deepSpec + `}}}`},
		"deep JSON patch":          {ContentType: jsonPatch, Body: `[{"op":"add","path":"/spec/channelTemplate/spec","value":` + deepSpec + `}]`},
		"deep apply":               {ContentType: applyPatch, Body: `{"apiVersion":"messaging.knative.dev/v1","kind":"Channel","metadata":{"name":"a"},"spec":{"channelTemplate":{"spec":` + deepSpec + `}}}`},
		"large merge patch":        {ContentType: mergePatch, Body: `{"metadata":{"annotations":{"a":"` + strings.Repeat("x", 4<<20) + `"}}}`},
		"invalid UTF-8":            {ContentType: mergePatch, Body: "{\"metadata\":{\"labels\":{\"a\":\"\xff\"}}}"},
		"too many JSON operations": {ContentType: jsonPatch, Body: "[" + strings.TrimSuffix(strings.Repeat(`{"op":"test","path":"/kind","value":"Channel"},`, 20_000), ",") + "]"},
		"copies of copies": {ContentType: jsonPatch, Body: `[{"op":"add","path":"/metadata/annotations/a","value":"` + strings.Repeat("x", 1000) + `"}` +
			strings.Repeat(`,{"op":"copy","from":"/metadata/annotations","path":"/metadata/annotations/b"}`, 40) + "]"},
	} {
		t.Run(name, func(t *testing.T) {
			request.Method, request.Path = "PATCH", pathOf(obj)
			if request.ContentType == applyPatch {
				request.Path += "?fieldManager=a"
			}
			wantRefused(t, admin.Do(t, request))
			wantSame(t, obj, reread(t, obj))
		})
	}
}

// TestBadPaths checks that elements of a path must be names.
func TestBadPaths(t *testing.T) {
	eachKind(t, func(t *testing.T, k harness.Kind) {
		for _, path := range []string{
			k.Path("default", "a%2Fb"),
			k.Path("default", ".."),
			k.Path("default", "%2e%2e"),
			k.Path("default", "a%00b"),
			k.Path("default", "%ff"),
			k.Path("default", strings.Repeat("a", 4000)),
			k.Path("a%2Fb", "a"),
			k.Path("%2e%2e", "a"),
		} {
			response := admin.Do(t, harness.Request{Method: "GET", Path: path})
			if response.Code/100 != 4 && response.Code != http.StatusMovedPermanently {
				t.Errorf("GET %s: code %d: %.200s", path, response.Code, response.Body)
			}
		}
		if k.Kind == "Revision" {
			return
		}
		for _, ns := range []string{"a%2Fb", "%2e%2e", "A_B", strings.Repeat("a", 64)} {
			response := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(ns), Body: k.Object("", "a")})
			if response.Code/100 != 4 && response.Code != http.StatusMovedPermanently {
				t.Errorf("POST %s: code %d: %.200s", k.Collection(ns), response.Code, response.Body)
			}
		}
	})
}

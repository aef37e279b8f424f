package standalone

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// unknownFields are requests with a field that no kind has, for every verb with a body.
func unknownFields(k harness.Kind, namespace string) map[string]harness.Request {
	obj := k.Object(namespace, "a")
	unknown := obj.DeepCopy()
	set(unknown, "x", "spec", "unknownField")
	requests := map[string]harness.Request{
		"PUT":                   {Method: "PUT", Path: pathOf(obj), Body: unknown},
		"merge patch":           {Method: "PATCH", Path: pathOf(obj), ContentType: mergePatch, Body: object{"spec": object{"unknownField": "x"}}},
		"strategic merge patch": {Method: "PATCH", Path: pathOf(obj), ContentType: strategicPatch, Body: object{"spec": object{"unknownField": "x"}}},
		"JSON patch":            {Method: "PATCH", Path: pathOf(obj), ContentType: jsonPatch, Body: []object{{"op": "add", "path": "/spec/unknownField", "value": "x"}}},
	}
	if k.Kind != "Revision" {
		unknown = unknown.DeepCopy()
		unknown.SetName("b")
		requests["POST"] = harness.Request{Method: "POST", Path: k.Collection(namespace), Body: unknown}
		requests["PUT of a new name"] = harness.Request{Method: "PUT", Path: pathOf(unknown), Body: unknown}
	}
	return requests
}

// TestUnknownFields covers serving 9-6, eventing Detailed Resources-7.
func TestUnknownFields(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		for name := range unknownFields(k, "") {
			t.Run(name, func(t *testing.T) {
				before := stored(t, k)
				for _, validation := range []string{"Strict", "Warn", "Ignore", ""} {
					request := unknownFields(k, before.GetNamespace())[name]
					request.Path = withQuery(request.Path, "fieldValidation="+validation)
					response := admin.Do(t, request)
					warnings := response.Header.Values("Warning")
					switch validation {
					case "Strict":
						code, reason := http.StatusBadRequest, metav1.StatusReasonBadRequest
						if request.Method == "PATCH" {
							// The result of the patch is invalid, although the patch itself is valid.
							code, reason = http.StatusUnprocessableEntity, metav1.StatusReasonInvalid
						}
						wantMessage(t, wantStatus(t, response, code, reason), `unknown field "spec.unknownField"`)
						wantSame(t, before, reread(t, before))
					case "Warn", "":
						if response.Code/100 != 2 || len(warnings) != 1 || !strings.Contains(warnings[0], `unknown field \"spec.unknownField\"`) {
							t.Errorf("%s: code %d, warnings %q", validation, response.Code, warnings)
						}
					case "Ignore":
						if response.Code/100 != 2 || len(warnings) != 0 {
							t.Errorf("code %d, warnings %q", response.Code, warnings)
						}
					}
					if response.Code/100 == 2 {
						live := response.Object(t)
						if field(reread(t, live), "spec", "unknownField") != nil {
							t.Errorf("%s stored the field", validation)
						}
						if live.GetName() == "b" {
							admin.Do(t, harness.Request{Method: "DELETE", Path: pathOf(live)})
						}
					}
				}
			})
		}
	})
}

// TestUnknownFieldsInApply checks that server-side apply always rejects unknown fields.
func TestUnknownFieldsInApply(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		before := stored(t, k)
		obj := k.Object(before.GetNamespace(), "a")
		set(obj, "x", "spec", "unknownField")
		response := admin.Do(t, applyRequest(pathOf(obj), obj))
		if response.Code/100 != 4 || !strings.Contains(response.Status(t).Message, "unknownField") {
			t.Errorf("code %d: %s", response.Code, response.Body)
		}
		wantSame(t, before, reread(t, before))
	})
}

func TestDuplicateFields(t *testing.T) {
	eachUserKind(t, func(t *testing.T, k harness.Kind) {
		ns := namespace(t)
		body := func(name, mediaType string) string {
			if mediaType == "application/yaml" {
				return fmt.Sprintf("apiVersion: %s\nkind: %s\nmetadata:\n  name: %s\n  labels:\n    a: first\n    a: second\nspec: %s\n",
					k.GroupVersion(), k.Kind, name, compact(k.Object("", "").Object["spec"]))
			}
			return fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"labels":{"a":"first"},"labels":{"a":"second"}},"spec":%s}`,
				k.GroupVersion(), k.Kind, name, compact(k.Object("", "").Object["spec"]))
		}
		for _, mediaType := range []string{"application/json", "application/yaml"} {
			for i, validation := range []string{"Strict", "Warn", "Ignore"} {
				name := fmt.Sprintf("%s-%d", strings.TrimPrefix(mediaType, "application/"), i)
				response := admin.Do(t, harness.Request{
					Method: "POST", Path: k.Collection(ns) + "?fieldValidation=" + validation,
					ContentType: mediaType, Body: body(name, mediaType),
				})
				warnings := strings.Join(response.Header.Values("Warning"), "")
				switch validation {
				case "Strict":
					status := wantStatus(t, response, http.StatusBadRequest, metav1.StatusReasonBadRequest)
					if !strings.Contains(status.Message, "duplicate field") && !strings.Contains(status.Message, "already set in map") {
						t.Errorf("%s: message is %q", mediaType, status.Message)
					}
					continue
				case "Warn":
					if !strings.Contains(warnings, "duplicate field") && !strings.Contains(warnings, "already set in map") {
						t.Errorf("%s: warnings are %q", mediaType, warnings)
					}
				case "Ignore":
					if warnings != "" {
						t.Errorf("%s: warnings are %q", mediaType, warnings)
					}
				}
				if got := response.Object(t).GetLabels()["a"]; got != "second" {
					t.Errorf("%s: the label is %q, want the last", mediaType, got)
				}
			}
		}
	})
}

func TestUnknownFieldValidation(t *testing.T) {
	k := harness.KindOf("Service")
	response := admin.Do(t, harness.Request{Method: "POST", Path: k.Collection(namespace(t)) + "?fieldValidation=Maybe", Body: k.Object("", "a")})
	status := wantStatus(t, response, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	wantMessage(t, status, "fieldValidation")
}

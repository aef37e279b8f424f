package apiserver

import (
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/kube-openapi/pkg/validation/spec"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/generated/openapi"
)

// TestKinds checks the names of groups, versions and kinds, and the parts of objects and lists.
func TestKinds(t *testing.T) {
	scheme := newPublishedScheme()
	for _, gv := range groupVersions {
		// conventions Overview-1 and -2
		if errs := validation.IsDNS1123Subdomain(gv.Group); len(errs) > 0 || strings.ToLower(gv.Group) != gv.Group {
			t.Errorf("group %s: %v", gv.Group, errs)
		}
		if errs := validation.IsDNS1123Label(gv.Version); len(errs) > 0 {
			t.Errorf("version %s: %v", gv.Version, errs)
		}
		for kind, goType := range scheme.KnownTypes(gv) {
			if isMeta(kind) || !strings.HasPrefix(goType.PkgPath(), "github.com/knative-apiserver/knative-apiserver/pkg/apis/") {
				continue
			}
			// conventions Overview-3: a kind is CamelCase.
			if !pascalCase.MatchString(kind) {
				t.Errorf("kind %s", kind)
			}
			_, items := goType.FieldByName("Items")
			// conventions Types-1 and -2: what has items is a list, and is called so.
			if items != strings.HasSuffix(kind, "List") {
				t.Errorf("%s: items are %t", kind, items)
			}
			object := reflect.New(goType).Interface()
			if items {
				// conventions Lists and Simple Kinds-1: a list has the metadata of lists.
				if _, err := meta.ListAccessor(object); err != nil {
					t.Errorf("%s: %v", kind, err)
				}
				continue
			}
			if _, ok := goType.FieldByName("ObjectMeta"); !ok {
				continue // options of a subresource
			}
			if kind == "RevisionExplanation" {
				continue // a read-only subresource that is not stored
			}
			if slices.Contains([]string{"EventTrace", "DeadLetter", "EventMetrics", "ServiceMetrics"}, kind) {
				continue // observations without a specification, as PodMetrics of metrics.k8s.io
			}
			if kind == "Redrive" || kind == "Replay" {
				continue // a request that creates another object, as Eviction of policy deletes one
			}
			// conventions Metadata-1 and -9, conventions Spec and Status-4 and -5: metadata, spec and status, and nothing else.
			var parts []string
			for i := range goType.NumField() {
				parts = append(parts, goType.Field(i).Name)
			}
			if kind == "ClusterDomainClaim" {
				// Nothing is observed about a claim.
				parts = append(parts, "Status")
			}
			if !slices.Equal(parts, []string{"TypeMeta", "ObjectMeta", "Spec", "Status"}) {
				t.Errorf("%s has %v", kind, parts)
			}
			if kind == "ClusterDomainClaim" {
				continue
			}
			if kind == "TriggerMatch" {
				continue // a request with its answer, as SubjectAccessReview of authorization.k8s.io
			}
			// conventions Conditions-8
			if _, ok := goType.FieldByName("Status"); !ok || !reflect.ValueOf(object).Elem().FieldByName("Status").FieldByName("ObservedGeneration").IsValid() {
				t.Errorf("%s has no status.observedGeneration", kind)
			}
		}
	}
}

var (
	pascalCase = regexp.MustCompile(`^[A-Z][A-Za-z0-9]*$`)
	camelCase  = regexp.MustCompile(`^[a-z][A-Za-z0-9]*$`)
)

// TestFieldTypes checks the names and types of all fields of our kinds (conventions Primitive Types-1 to -3, conventions Lists
// over Maps-1, conventions Units-1 and -2, conventions Naming-1 to -4).
func TestFieldTypes(t *testing.T) {
	scheme := newPublishedScheme()
	seen := map[reflect.Type]bool{}
	fields := 0
	var check func(owner reflect.Type)
	check = func(owner reflect.Type) {
		switch owner.Kind() {
		case reflect.Pointer, reflect.Slice, reflect.Map:
			check(owner.Elem())
			return
		case reflect.Struct:
		default:
			return
		}
		if seen[owner] || !strings.HasPrefix(owner.PkgPath(), "github.com/knative-apiserver/") {
			return
		}
		seen[owner] = true
		for i := range owner.NumField() {
			field := owner.Field(i)
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" {
				fields++
				checkField(t, owner, name, field.Type)
			}
			check(field.Type)
		}
	}
	for _, gv := range groupVersions {
		for _, goType := range scheme.KnownTypes(gv) {
			check(goType)
		}
	}
	if fields < 100 {
		t.Errorf("only %d fields were found", fields)
	}
}

func checkField(t *testing.T, owner reflect.Type, name string, fieldType reflect.Type) {
	t.Helper()
	if fieldType.Kind() == reflect.Pointer {
		fieldType = fieldType.Elem()
	}
	// CACerts is the name in Knative's releases.
	if !camelCase.MatchString(name) && name != "CACerts" {
		t.Errorf("%s.%s must be in camelCase", owner, name)
	}
	switch fieldType.Kind() {
	case reflect.Map:
		if kind := fieldType.Elem().Kind(); kind == reflect.Struct || kind == reflect.Pointer {
			t.Errorf("%s.%s must be a list of named objects", owner, name)
		}
	case reflect.Bool:
		if strings.HasPrefix(name, "is") {
			t.Errorf("%s.%s must be named without is", owner, name)
		}
	case reflect.Float32, reflect.Float64:
		t.Errorf("%s.%s must not be a floating-point number", owner, name)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		t.Errorf("%s.%s is of type %s, must be int32 or int64", owner, name, fieldType)
	}
	// A duration is a number of seconds, as its name says. The specification of eventing prescribes ISO 8601 for delivery
	// options.
	switch number := fieldType.Kind() == reflect.Int32 || fieldType.Kind() == reflect.Int64; {
	case fieldType == reflect.TypeFor[metav1.Duration](), fieldType.String() == "time.Duration":
		t.Errorf("%s.%s must be a number of seconds", owner, name)
	case number && (strings.Contains(name, "imeout") || strings.Contains(name, "elay") || strings.Contains(name, "eriod")) && !strings.HasSuffix(name, "Seconds"):
		t.Errorf("%s.%s must name its unit", owner, name)
	}
	// The ends of the range of a Replay are not times at which something occurs.
	end := owner == reflect.TypeFor[eventingv1alpha1.Replay]() && (name == "from" || name == "to")
	if fieldType == reflect.TypeFor[metav1.Time]() && !strings.HasSuffix(name, "Time") && !end {
		t.Errorf("%s.%s must be called somethingTime", owner, name)
	}
}

// TestEnumerations checks that the values of enumerations are strings in CamelCase (conventions Constants-1), except
// the values that the specification of eventing prescribes.
func TestEnumerations(t *testing.T) {
	prescribed := []string{"linear", "exponential", "json", "binary"}
	enumerations := 0
	for model, definition := range openapi.GetOpenAPIDefinitions(spec.MustCreateRef) {
		if !strings.Contains(model, "knative") {
			continue
		}
		for name, property := range definition.Schema.Properties {
			for _, value := range property.Enum {
				enumerations++
				text, ok := value.(string)
				if !ok || text != "" && !pascalCase.MatchString(text) && !slices.Contains(prescribed, text) {
					t.Errorf("%s.%s: %v", model, name, value)
				}
			}
		}
	}
	if enumerations == 0 {
		t.Error("there are no enumerations")
	}
}

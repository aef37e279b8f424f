package v1

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
)

// maxFilterDepth bounds the nesting of filters, and of parentheses within a CESQL expression, so that neither validation nor
// evaluation needs unbounded stack or time. The parser needs seconds for a few kilobytes of unbalanced parentheses.
const maxFilterDepth = 32

// Limits of all filters of one object combined, which bound the cost of validation and evaluation. The data plane also bounds
// the cost of an event.
const (
	// maxFilters bounds the number of filters, at all depths, and of compared attributes.
	maxFilters = 512
	// maxCESQLTotal bounds the length of all CESQL expressions, in bytes.
	maxCESQLTotal = 16 << 10
	// maxCESQLCalls bounds the number of LIKE operators and function calls in all CESQL expressions.
	maxCESQLCalls = 128
)

var attributeName = regexp.MustCompile(`^[a-z][a-z0-9]*$`)

// filterSize counts the limited quantities.
type filterSize struct{ filters, cesql, calls int }

// add counts filters at a depth, their attributes and all nested filters, until a limit is exceeded.
func (s *filterSize) add(filters []SubscriptionsAPIFilter, depth int) {
	if depth > maxFilterDepth {
		return
	}
	for i := range filters {
		f := &filters[i]
		if s.filters += 1 + len(f.Exact) + len(f.Prefix) + len(f.Suffix); s.filters > maxFilters {
			return
		}
		s.cesql += len(f.CESQL)
		if calls, err := scanCESQL(f.CESQL); err == nil {
			s.calls += calls
		}
		s.add(f.All, depth+1)
		s.add(f.Any, depth+1)
		if f.Not != nil {
			s.add([]SubscriptionsAPIFilter{*f.Not}, depth+1)
		}
	}
}

// ValidateFilters returns the errors of the filters of a Trigger. Filters beyond the limits are not validated.
func ValidateFilters(filters []SubscriptionsAPIFilter, path *field.Path) field.ErrorList {
	return filterRules{}.validate(filters, path)
}

// ValidatePolicyFilters is like ValidateFilters for an EventPolicy: as in Knative's releases, a filter may have no dialect, and the value to
// compare an attribute with may be empty.
func ValidatePolicyFilters(filters []SubscriptionsAPIFilter, path *field.Path) field.ErrorList {
	return filterRules{allowEmpty: true}.validate(filters, path)
}

// filterRules are the rules that depend on the kind of an object with filters.
type filterRules struct {
	// allowEmpty is true if a filter may have no dialect, and the value of an attribute may be empty.
	allowEmpty bool
}

func (r filterRules) validate(filters []SubscriptionsAPIFilter, path *field.Path) field.ErrorList {
	var size filterSize
	size.add(filters, 1)
	var errs field.ErrorList
	switch {
	case size.filters > maxFilters:
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, fmt.Sprintf(
			"must have at most %d filters, those within other filters and the attributes they compare included", maxFilters)))
	case size.cesql > maxCESQLTotal:
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, fmt.Sprintf(
			"must have at most %d bytes of `cesql` in all filters together, not %d", maxCESQLTotal, size.cesql)))
	case size.calls > maxCESQLCalls:
		errs = append(errs, field.Invalid(path, field.OmitValueType{}, fmt.Sprintf(
			"must have at most %d LIKE operators and function calls in the `cesql` of all filters together, not %d", maxCESQLCalls, size.calls)))
	}
	if len(errs) > 0 {
		return errs
	}
	return r.nested(filters, 1, path)
}

// nested returns the errors of a list of filters at a depth, counted from 1.
func (r filterRules) nested(filters []SubscriptionsAPIFilter, depth int, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for i := range filters {
		errs = append(errs, r.filter(&filters[i], depth, path.Index(i))...)
	}
	return errs
}

// filter returns the errors of a filter and all nested filters. At most one dialect may be set; an empty map or list counts as unset, because
// it is not stored.
func (r filterRules) filter(f *SubscriptionsAPIFilter, depth int, path *field.Path) field.ErrorList {
	if depth > maxFilterDepth {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{},
			fmt.Sprintf("must not be nested deeper than %d filters", maxFilterDepth))}
	}
	var errs field.ErrorList
	switch set, empty := dialects(f); {
	case len(set) > 1:
		errs = append(errs, field.Invalid(path, strings.Join(set, ", "), "must have exactly one dialect"))
	case len(set) == 1 || r.allowEmpty:
	case len(empty) > 0:
		errs = append(errs, field.Required(path.Child(empty[0]), "must not be empty"))
	default:
		errs = append(errs, field.Required(path,
			"must have one of the dialects `all`, `any`, `not`, `exact`, `prefix`, `suffix` and `cesql`"))
	}
	errs = append(errs, r.nested(f.All, depth+1, path.Child("all"))...)
	errs = append(errs, r.nested(f.Any, depth+1, path.Child("any"))...)
	if f.Not != nil {
		errs = append(errs, r.filter(f.Not, depth+1, path.Child("not"))...)
	}
	errs = append(errs, r.attributes(f.Exact, path.Child("exact"))...)
	errs = append(errs, r.attributes(f.Prefix, path.Child("prefix"))...)
	errs = append(errs, r.attributes(f.Suffix, path.Child("suffix"))...)
	return append(errs, validateCESQL(f.CESQL, path.Child("cesql"))...)
}

// WarnFilters returns a warning for each filter of an EventPolicy without a dialect, and for each empty value of an attribute. Filters that
// are nested too deep cause no warnings.
func WarnFilters(filters []SubscriptionsAPIFilter, path *field.Path) []string {
	return warnNested(filters, 1, path)
}

func warnNested(filters []SubscriptionsAPIFilter, depth int, path *field.Path) []string {
	var warnings []string
	for i := range filters {
		warnings = append(warnings, warnFilter(&filters[i], depth, path.Index(i))...)
	}
	return warnings
}

func warnFilter(f *SubscriptionsAPIFilter, depth int, path *field.Path) []string {
	if depth > maxFilterDepth {
		return nil
	}
	if set, _ := dialects(f); len(set) == 0 {
		return []string{duckv1.Unused(path, "it has none of the dialects `all`, `any`, `not`, `exact`, `prefix`, `suffix` and `cesql`")}
	}
	warnings := append(warnNested(f.All, depth+1, path.Child("all")), warnNested(f.Any, depth+1, path.Child("any"))...)
	if f.Not != nil {
		warnings = append(warnings, warnFilter(f.Not, depth+1, path.Child("not"))...)
	}
	for _, compared := range []struct {
		dialect string
		values  map[string]string
	}{{"exact", f.Exact}, {"prefix", f.Prefix}, {"suffix", f.Suffix}} {
		for _, name := range slices.Sorted(maps.Keys(compared.values)) {
			if compared.values[name] == "" {
				warnings = append(warnings, fmt.Sprintf("%s: an empty value passes all events with the attribute", path.Child(compared.dialect).Key(name)))
			}
		}
	}
	return warnings
}

// dialects returns the names of a filter's non-empty dialects, and of the empty ones.
func dialects(f *SubscriptionsAPIFilter) (set, empty []string) {
	note := func(name string, there bool, length int) {
		switch {
		case length > 0:
			set = append(set, name)
		case there:
			empty = append(empty, name)
		}
	}
	note("all", f.All != nil, len(f.All))
	note("any", f.Any != nil, len(f.Any))
	if f.Not != nil {
		set = append(set, "not")
	}
	note("exact", f.Exact != nil, len(f.Exact))
	note("prefix", f.Prefix != nil, len(f.Prefix))
	note("suffix", f.Suffix != nil, len(f.Suffix))
	note("cesql", false, len(f.CESQL))
	return set, empty
}

// validateAttributeNames returns the errors of attribute names, in alphabetical order.
func validateAttributeNames(attributes map[string]string, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if !attributeName.MatchString(name) {
			errs = append(errs, field.Invalid(path.Key(name), name,
				"must be the name of an attribute: it must match regex '"+attributeName.String()+"'"))
		}
	}
	return errs
}

// attributes returns the errors of attribute names and the values they are compared with. In contrast to a TriggerFilter, an empty value has
// no meaning in the CloudEvents Subscriptions API, filter dialects.
func (r filterRules) attributes(attributes map[string]string, path *field.Path) field.ErrorList {
	errs := validateAttributeNames(attributes, path)
	if r.allowEmpty {
		return errs
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if attributes[name] == "" {
			errs = append(errs, field.Required(path.Key(name), "must be the value to compare the attribute with"))
		}
	}
	return errs
}

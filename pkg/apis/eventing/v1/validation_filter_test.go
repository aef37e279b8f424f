package v1

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/knative-apiserver/knative-apiserver/pkg/apis/internal/apitest"
)

// nested returns a filter at a nesting depth, counted from 1.
func nested(depth int) SubscriptionsAPIFilter {
	f := SubscriptionsAPIFilter{CESQL: "TRUE"}
	for ; depth > 1; depth-- {
		switch inner := f; depth % 3 {
		case 0:
			f = SubscriptionsAPIFilter{All: []SubscriptionsAPIFilter{inner}}
		case 1:
			f = SubscriptionsAPIFilter{Any: []SubscriptionsAPIFilter{inner}}
		default:
			f = SubscriptionsAPIFilter{Not: &inner}
		}
	}
	return f
}

// TestValidateFilters covers the dialects of the CloudEvents Subscriptions API.
func TestValidateFilters(t *testing.T) {
	type filters = []SubscriptionsAPIFilter
	type values = map[string]string
	tests := []struct {
		name string
		in   filters
		want []fault
	}{
		{"none", nil, nil},
		{"each dialect", filters{
			{Exact: values{"type": "a", "source": "b"}}, {Prefix: values{"type": "a"}}, {Suffix: values{"type": "a"}},
			{All: filters{{CESQL: "TRUE"}, {CESQL: "FALSE"}}}, {Any: filters{{CESQL: "TRUE"}}}, {Not: &SubscriptionsAPIFilter{CESQL: "TRUE"}},
		}, nil},
		{"empty dialects beside the one that is set", filters{{All: filters{}, Exact: values{"type": "a"}, Prefix: values{}}}, nil},
		{"no dialect", filters{{CESQL: "TRUE"}, {}}, []fault{
			{field.ErrorTypeRequired, "spec.filters[1]", "must have one of the dialects `all`"}}},
		{"two dialects", filters{{Exact: values{"type": "a"}, CESQL: "TRUE"}}, []fault{
			{field.ErrorTypeInvalid, "spec.filters[0]", `"exact, cesql": must have exactly one dialect`}}},
		{"all dialects", filters{{All: filters{{CESQL: "TRUE"}}, Any: filters{{CESQL: "TRUE"}}, Not: &SubscriptionsAPIFilter{CESQL: "TRUE"},
			Exact: values{"a": "b"}, Prefix: values{"a": "b"}, Suffix: values{"a": "b"}, CESQL: "TRUE"}}, []fault{
			{field.ErrorTypeInvalid, "spec.filters[0]", `"all, any, not, exact, prefix, suffix, cesql"`}}},
		{"empty lists and maps", filters{{All: filters{}}, {Any: filters{}}, {Exact: values{}}, {Prefix: values{}}, {Suffix: values{}}}, []fault{
			{field.ErrorTypeRequired, "spec.filters[0].all", "must not be empty"},
			{field.ErrorTypeRequired, "spec.filters[1].any", "must not be empty"},
			{field.ErrorTypeRequired, "spec.filters[2].exact", "must not be empty"},
			{field.ErrorTypeRequired, "spec.filters[3].prefix", "must not be empty"},
			{field.ErrorTypeRequired, "spec.filters[4].suffix", "must not be empty"}}},
		{"nested errors, all reported at once", filters{{All: filters{
			{Any: filters{{Not: &SubscriptionsAPIFilter{}}, {Exact: values{"Type": "a"}}}},
			{Prefix: values{"a-b": "c"}}, {Suffix: values{"1": "c"}}, {CESQL: "("},
		}}}, []fault{
			{field.ErrorTypeRequired, "spec.filters[0].all[0].any[0].not", "must have one of the dialects"},
			{field.ErrorTypeInvalid, "spec.filters[0].all[0].any[1].exact[Type]", "must match regex"},
			{field.ErrorTypeInvalid, "spec.filters[0].all[1].prefix[a-b]", "must match regex"},
			{field.ErrorTypeInvalid, "spec.filters[0].all[2].suffix[1]", "must match regex"},
			{field.ErrorTypeInvalid, "spec.filters[0].all[3].cesql", "must close all parentheses"}}},
		{"empty values", filters{{Exact: values{"type": ""}}, {Prefix: values{"type": ""}}, {Suffix: values{"type": ""}}}, []fault{
			{field.ErrorTypeRequired, "spec.filters[0].exact[type]", "must be the value"},
			{field.ErrorTypeRequired, "spec.filters[1].prefix[type]", "must be the value"},
			{field.ErrorTypeRequired, "spec.filters[2].suffix[type]", "must be the value"}}},
		{"maximum depth", filters{nested(maxFilterDepth)}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			apitest.ExpectFaults(t, ValidateTrigger(newTrigger(func(t *Trigger) { t.Spec.Filters = tt.in })), tt.want...)
		})
	}

	for _, depth := range []int{maxFilterDepth + 1, 10_000} {
		got := ValidateTrigger(newTrigger(func(t *Trigger) { t.Spec.Filters = filters{nested(depth)} }))
		if len(got) != 1 || got[0].Type != field.ErrorTypeInvalid || !strings.Contains(got[0].Detail, "must not be nested deeper than 32 filters") {
			t.Errorf("filters %d deep: %v, want one error about their depth", depth, got)
		}
	}
}

// TestValidateCESQL covers the cesql dialect: expressions are parsed, and input that the parser skips or cannot handle is rejected.
func TestValidateCESQL(t *testing.T) {
	for _, good := range []string{
		"TRUE",
		"type = 'order.placed'",
		"source LIKE '%eu%' and not exists Subject",
		`type IN ("a", "b""c", 'd\'e', 'f''g')`,
		"LENGTH(type) >= 3 OR ABS(-1) <= (2 * 3 / 4 % 5) - 6",
		"a <> b XOR a != b",
		"CONCAT_WS('-', type, source) < 'x'",
		"1st = 2",
		"type = 'ünïcode # ; ! \\\\ (('\n\t\r",
		strings.Repeat("(", maxFilterDepth) + "TRUE" + strings.Repeat(")", maxFilterDepth),
		strings.Repeat("(TRUE) AND ", 100) + "TRUE",
	} {
		if errs := validateCESQL(good, field.NewPath("cesql")); len(errs) > 0 {
			t.Errorf("%q: %v", good, errs)
		}
	}

	for bad, want := range map[string]string{
		" ":                        "must be a CloudEvents SQL expression: syntax error",
		"type type":                "must be a CloudEvents SQL expression: syntax error",
		"type =":                   "must be a CloudEvents SQL expression: syntax error",
		"type IN ()":               "must be a CloudEvents SQL expression: syntax error",
		"type LIKE other":          "the pattern was not a string literal",
		"n = 99999999999":          "value out of range",
		"ABS(":                     "must close all parentheses",
		"a) = (b":                  "must open the parenthesis that is closed at position 2",
		"type = 'a":                "must close the string that starts with ' at position 8",
		`type = "a\"`:              `must close the string that starts with " at position 8`,
		"type = 'a' ; DROP":        "must not contain ';' outside of strings, as at position 12",
		"type = 'a' ###":           "must not contain '#'",
		"type \\ = 'a'":            `must not contain '\\' outside of strings`,
		"type ! = 'a'":             "must not contain '!' outside of strings, as at position 6",
		"type = 'a'\x00":           `must not contain '\x00'`,
		"tÿpe = 'a'":               "must not contain 'ÿ' outside of strings, as at position 2",
		"ſ = 'a'":                  "must not contain 'ſ'",
		"type = 'a'\xff":           "outside of strings",
		"a1_ = 1":                  "must not contain 'a1_': only names of letters may have underscores",
		"_a = 1":                   "must not contain '_a'",
		strings.Repeat("(", 4096):  "must not nest parentheses deeper than 32",
		strings.Repeat("A(", 2048): "must not nest parentheses deeper than 32",
	} {
		apitest.ExpectFaults(t, validateCESQL(bad, field.NewPath("cesql")), fault{field.ErrorTypeInvalid, "cesql", want})
	}

	apitest.ExpectFaults(t, validateCESQL(strings.Repeat(" ", maxCESQLLength)+"TRUE", field.NewPath("cesql")),
		fault{field.ErrorTypeTooLong, "cesql", "may not be more than 4096 bytes"})
}

// TestFilterLimits covers the limits of all filters of a Trigger together.
func TestFilterLimits(t *testing.T) {
	const path = "spec.filters"
	repeated := func(n int, f SubscriptionsAPIFilter) []SubscriptionsAPIFilter {
		filters := make([]SubscriptionsAPIFilter, n)
		for i := range filters {
			filters[i] = f
		}
		return filters
	}
	exact := SubscriptionsAPIFilter{Exact: map[string]string{"type": "a"}}
	calls := func(n int, call string) SubscriptionsAPIFilter {
		return SubscriptionsAPIFilter{CESQL: strings.TrimSuffix(strings.Repeat(call+" OR ", n), " OR ")}
	}
	padded := SubscriptionsAPIFilter{CESQL: "type = '" + strings.Repeat("a", maxCESQLLength-9) + "'"}
	tests := []struct {
		name string
		in   []SubscriptionsAPIFilter
		want []fault
	}{
		{"maximum number of filters", repeated(maxFilters/2, exact), nil},
		{"too many filters", repeated(maxFilters/2+1, exact), []fault{
			{field.ErrorTypeInvalid, path, "must have at most 512 filters, those within other filters and the attributes they compare included"}}},
		{"too many filters within others", []SubscriptionsAPIFilter{{Any: []SubscriptionsAPIFilter{{Not: &SubscriptionsAPIFilter{All: repeated(maxFilters/2, exact)}}}}},
			[]fault{{field.ErrorTypeInvalid, path, "at most 512 filters"}}},
		{"maximum size of CESQL", repeated(maxCESQLTotal/maxCESQLLength, padded), nil},
		{"too much CESQL", append(repeated(maxCESQLTotal/maxCESQLLength, padded), calls(1, "TRUE")), []fault{
			{field.ErrorTypeInvalid, path, "must have at most 16384 bytes of `cesql` in all filters together, not 16388"}}},
		{"maximum number of LIKE", []SubscriptionsAPIFilter{calls(64, "type LIKE 'like(%'"), calls(64, "type NOT like 'a%'")}, nil},
		{"too many LIKE", []SubscriptionsAPIFilter{calls(64, "type LIKE '%'"), {Not: &SubscriptionsAPIFilter{All: []SubscriptionsAPIFilter{calls(65, "type NOT like '%'")}}}}, []fault{
			{field.ErrorTypeInvalid, path, "must have at most 128 LIKE operators and function calls in the `cesql` of all filters together, not 129"}}},
		{"maximum number of functions", []SubscriptionsAPIFilter{calls(64, "LENGTH (CONCAT_WS(type, 'a')) IN (1) AND NOT (FALSE)")}, nil},
		{"too many functions", []SubscriptionsAPIFilter{calls(43, "UPPER(LOWER (UPPER\n('a'))) = 'a'")}, []fault{
			{field.ErrorTypeInvalid, path, "LIKE operators and function calls"}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			trigger := newTrigger(func(t *Trigger) { t.Spec.Filters = tt.in })
			apitest.ExpectFaults(t, ValidateTrigger(trigger), tt.want...)
			apitest.ExpectFaults(t, ValidateTriggerUpdate(trigger, newTrigger()), tt.want...)
			// Stored Triggers that exceed a limit can still get labels and finalizers.
			apitest.ExpectFaults[fault](t, ValidateTriggerUpdate(trigger, trigger.DeepCopy()))
		})
	}
}

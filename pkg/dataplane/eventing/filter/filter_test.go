package filter

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

type (
	values  = map[string]string
	dialect = eventing.Filter
	filters = []dialect
)

// newEvent returns an event with attributes, given as names and values in turn.
func newEvent(attributes ...string) *event.Event {
	e := &event.Event{Attributes: []event.Attribute{{Name: event.ID, Value: "1"}, {Name: event.Source, Value: "/orders"}}}
	for i := 0; i < len(attributes); i += 2 {
		e.Attributes = append(e.Attributes, event.Attribute{Name: attributes[i], Value: attributes[i+1]})
	}
	return e
}

func compiled(t testing.TB, attributes values, list ...dialect) *Filter {
	t.Helper()
	f, err := Compile(attributes, list)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// match reports whether an event passes a filter that stays within its budget.
func match(f *Filter, e *event.Event) bool {
	matched, ok := f.Match(NewBudget(context.Background()), e)
	if !ok {
		panic("the budget was exceeded")
	}
	return matched
}

// found returns the values whose filters pass an event, all of which stay within their budget.
func found[K comparable, V any](x *Index[K, V], e *event.Event) []V {
	matched, exceeded := x.Match(NewBudget(context.Background()), e, nil)
	if len(exceeded) > 0 {
		panic("the budget was exceeded")
	}
	return matched
}

// TestAttributes covers eventing TriggerFilter-1 to -5.
func TestAttributes(t *testing.T) {
	e := newEvent("type", "order.placed", "region", "eu", "empty", "")
	for _, tt := range []struct {
		name       string
		attributes values
		want       bool
	}{
		{"no filter", nil, true},
		{"no attributes", values{}, true},
		{"equal", values{"type": "order.placed"}, true},
		{"different", values{"type": "order.paid"}, false},
		{"case counts", values{"type": "Order.Placed"}, false},
		{"longer", values{"type": "order.placed.twice"}, false},
		{"shorter", values{"type": "order"}, false},
		{"all equal", values{"type": "order.placed", "source": "/orders", "region": "eu"}, true},
		{"one of two differs", values{"type": "order.placed", "region": "us"}, false},
		{"any value", values{"region": ""}, true},
		{"any value, including the empty one", values{"empty": ""}, true},
		{"any value of a missing attribute", values{"missing": ""}, false},
		{"value of a missing attribute", values{"missing": "a"}, false},
		{"any value, and one that differs", values{"region": "", "type": "a"}, false},
		{"names are case-sensitive", values{"Region": "eu"}, false},
		{"specversion", values{"specversion": "1.0"}, true},
		{"any specversion", values{"specversion": ""}, true},
		{"another specversion", values{"specversion": "0.3"}, false},
	} {
		if got := match(compiled(t, tt.attributes), e); got != tt.want {
			t.Errorf("%s: %v passes %v, want %v", tt.name, tt.attributes, got, tt.want)
		}
	}
}

// TestDialects covers the dialects of spec.filters (CloudEvents Subscriptions API), which override spec.filter.
func TestDialects(t *testing.T) {
	yes, no := dialect{Exact: values{"type": "order.placed"}}, dialect{Exact: values{"type": "other"}}
	e := newEvent("type", "order.placed", "region", "eu", "number", "5", "flag", "true")
	for _, tt := range []struct {
		name string
		in   filters
		want bool
	}{
		{"exact", filters{yes}, true},
		{"exact, another value", filters{no}, false},
		{"exact, all of several", filters{{Exact: values{"type": "order.placed", "region": "eu"}}}, true},
		{"exact, one of several", filters{{Exact: values{"type": "order.placed", "region": "us"}}}, false},
		{"prefix", filters{{Prefix: values{"type": "order."}}}, true},
		{"prefix, all of it", filters{{Prefix: values{"type": "order.placed"}}}, true},
		{"prefix, elsewhere", filters{{Prefix: values{"type": "placed"}}}, false},
		{"prefix, longer", filters{{Prefix: values{"type": "order.placed."}}}, false},
		{"prefix, one of several", filters{{Prefix: values{"type": "order.", "region": "u"}}}, false},
		{"prefix, missing attribute", filters{{Prefix: values{"missing": "a"}}}, false},
		{"prefix of specversion", filters{{Prefix: values{"specversion": "1"}}}, true},
		{"suffix", filters{{Suffix: values{"type": ".placed"}}}, true},
		{"suffix, elsewhere", filters{{Suffix: values{"type": "order"}}}, false},
		{"suffix, missing attribute", filters{{Suffix: values{"missing": "a"}}}, false},
		{"several filters", filters{yes, yes}, true},
		{"several filters, one fails", filters{yes, no}, false},
		{"all", filters{{All: filters{yes, yes}}}, true},
		{"all, one fails", filters{{All: filters{yes, no}}}, false},
		{"any", filters{{Any: filters{no, yes}}}, true},
		{"any, none", filters{{Any: filters{no, no}}}, false},
		{"not", filters{{Not: &no}}, true},
		{"not, passed", filters{{Not: &yes}}, false},
		{"not a missing attribute", filters{{Not: &dialect{Exact: values{"missing": "a"}}}}, true},
		{"nested", filters{{Any: filters{no, {All: filters{yes, {Not: &dialect{Any: filters{no}}}}}}}}, true},
		{"cesql", filters{{CESQL: "type = 'order.placed' AND region IN ('eu', 'us')"}}, true},
		{"cesql, false", filters{{CESQL: "type = 'order.placed' AND region = 'us'"}}, false},
		{"cesql, names in any case", filters{{CESQL: "TYPE = 'order.placed'"}}, true},
		{"cesql, no precedence of AND", filters{{CESQL: "FALSE AND type = 'other' OR TRUE"}}, false},
		{"cesql, or", filters{{CESQL: "type = 'other' OR region = 'eu'"}}, true},
		{"cesql, in parentheses", filters{{CESQL: "(type = \"order.placed\") AND (region = 'eu' AND TRUE)"}}, true},
		{"cesql, doubled quotes", filters{{CESQL: "type = 'a''b'"}}, false},
		{"cesql, numbers", filters{{CESQL: "number = 5 AND number < 6"}}, true},
		{"cesql, missing attribute", filters{{CESQL: "missing = 'a'"}}, false},
		{"cesql, existence", filters{{CESQL: "NOT EXISTS missing AND EXISTS region"}}, true},
		{"cesql, error", filters{{CESQL: "1 / 0 = 1"}}, false},
		{"cesql, error in a function", filters{{CESQL: "LEFT(type, -1) = 'o' OR TRUE"}}, false},
		{"cesql, unknown function", filters{{CESQL: "NOSUCH(type) OR TRUE"}}, false},
		{"cesql, string", filters{{CESQL: "'true'"}}, false},
		{"cesql, attribute that reads as a boolean", filters{{CESQL: "flag"}}, false},
		{"cesql, number", filters{{CESQL: "1"}}, false},
		{"cesql, not of an error", filters{{Not: &dialect{CESQL: "missing = 'a'"}}}, true},
	} {
		// The attributes pass nothing: they are overridden.
		f := compiled(t, values{"type": "overridden"}, tt.in...)
		if got := match(f, e); got != tt.want {
			t.Errorf("%s: passes %v, want %v", tt.name, got, tt.want)
		}
		if got := len(found(new(Index[string, int]).With("key", f, 1), e)) == 1; got != tt.want {
			t.Errorf("%s: found %v, want %v", tt.name, got, tt.want)
		}
	}
}

func TestCompileErrors(t *testing.T) {
	good := dialect{CESQL: "TRUE"}
	for _, tt := range []struct {
		in   filters
		want string
	}{
		{filters{good, {}}, "filters[1]: must have exactly one dialect"},
		{filters{{CESQL: "TRUE", Prefix: values{"a": "b"}}}, "filters[0]: must have exactly one dialect"},
		{filters{{All: filters{}}}, "filters[0]: must have exactly one dialect"},
		{filters{{All: filters{good, {Any: filters{{Not: &dialect{}}}}}}}, "filters[0]: all[1]: any[0]: not: must have exactly one dialect"},
		{filters{{CESQL: "type ="}}, "filters[0]: cesql: syntax error"},
		{filters{{CESQL: "n = 99999999999"}}, "value out of range"},
	} {
		if _, err := Compile(nil, tt.in); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v: error %v, want %q", tt.in, err, tt.want)
		}
	}
}

// TestRequired covers conditions that are found in expressions without evaluating them.
func TestRequired(t *testing.T) {
	for expression, want := range map[string]int{
		"type = 'a'":                            1,
		"type = 'a' AND region = 'b'":           2,
		"type = 'a' AND LENGTH(id) > 3":         1,
		"type = 'a' AND (id = 'b' OR TRUE)":     1,
		"type = 'a' OR region = 'b'":            0,
		"NOT (type = 'a')":                      0,
		"type = 'a' XOR TRUE":                   0,
		"type != 'a'":                           0,
		"'a' = type":                            0,
		"number = 5":                            0,
		`type = 'a\'b'`:                         0,
		"source = '/a' AND time = '2020-01-01'": 0,
	} {
		q, err := parse(expression)
		if err != nil {
			t.Fatal(err)
		}
		if len(q.required) != want {
			t.Errorf("%s: requires %v, want %d conditions", expression, q.required, want)
		}
	}
}

func TestRejectingDoesNotAllocate(t *testing.T) {
	e := newEvent("type", "order.placed", "region", "eu")
	for name, in := range map[string]dialect{
		"exact":  {Exact: values{"type": "other", "region": "eu"}},
		"prefix": {Prefix: values{"type": "other"}},
		"suffix": {Suffix: values{"type": "other"}},
		"all":    {All: filters{{Prefix: values{"type": "order"}}, {Suffix: values{"region": "s"}}}},
		"any":    {Any: filters{{Exact: values{"type": "a"}}, {Exact: values{"type": "b"}}}},
		"not":    {Not: &dialect{Exact: values{"type": "order.placed"}}},
		"cesql":  {CESQL: "type = 'other' AND region = 'eu'"},
	} {
		f, budget := compiled(t, nil, in), NewBudget(t.Context())
		if allocs := testing.AllocsPerRun(100, func() {
			if matched, _ := f.Match(budget, e); matched {
				t.Fatalf("%s: passes", name)
			}
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// TestParseAtOnce parses and evaluates expressions in several goroutines, because the parser has shared state.
func TestParseAtOnce(t *testing.T) {
	e := newEvent("type", "a", "x", "-2147483648")
	var wait sync.WaitGroup
	for i := range 4 {
		wait.Go(func() {
			for step := range 50 {
				expression := []string{"type = '%d' AND x = 5 * %d", "NOT EXISTS a%d OR b LIKE '%%%d'", "SUBSTRING(type, %d, -%d) = 'a' OR ABS(x) > 0",
					"type IN ('b', 'c%d') XOR LENGTH(type) > %d"}[(i+step)%4]
				f, err := Compile(nil, filters{{CESQL: fmt.Sprintf(expression, i, step)}})
				if err != nil {
					t.Error(err)
					return
				}
				match(f, e)
			}
		})
	}
	wait.Wait()
}

// TestVersionOfEvents covers filters by specversion, which events of two versions may have, also by the index.
func TestVersionOfEvents(t *testing.T) {
	for value, want := range map[string][2]bool{"1.0": {true, false}, "0.3": {false, true}, "2.0": {false, false}} {
		f, err := Compile(map[string]string{"specversion": value}, nil)
		if err != nil {
			t.Fatal(err)
		}
		x := (&Index[string, string]{}).With("a", f, "a")
		for i, v03 := range []bool{false, true} {
			matched, _ := x.Match(NewBudget(t.Context()), &event.Event{V03: v03, Attributes: []event.Attribute{{Name: "id", Value: "1"}}}, nil)
			if (len(matched) == 1) != want[i] {
				t.Errorf("filter %s, event of 0.3 %t: matched %v, want %t", value, v03, matched, want[i])
			}
		}
	}
}

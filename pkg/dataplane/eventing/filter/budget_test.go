package filter

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// steps returns the number of steps that a filter takes for an event, and whether they were within its budget.
func steps(f *Filter, e *event.Event) (used int, ok bool) {
	b := NewBudget(context.Background())
	_, ok = f.Match(b, e)
	return b.total, ok
}

// TestLikeCost repeats finding 4 of the security review: LIKE compared each byte of the text with the whole pattern, which took
// 60,000 times 3,900 steps for each of the four expressions.
func TestLikeCost(t *testing.T) {
	const length = 60_000
	e, a := newEvent("type", strings.Repeat("a", length)), strings.Repeat("a", 3_900)
	for _, pattern := range []string{"%" + a + "b", "%" + a + "b%", a + "%b" + a, "%" + a + "%" + a + "b%", strings.Repeat("%a", 1_900) + "%b%"} {
		like := dialect{CESQL: "type LIKE '" + pattern + "'"}
		f := compiled(t, nil, dialect{Any: []dialect{like, like, like, like}})
		used, ok := steps(f, e)
		if limit := 4 * (length + 2*len(pattern)); !ok || used > limit {
			t.Errorf("four LIKE '%.10s...' take %d steps, within the budget: %v; want at most %d", pattern, used, ok, limit)
		}
	}
}

// TestCostIsBounded evaluates the most expensive expressions for the length of their input, which may have been stored before limits existed.
func TestCostIsBounded(t *testing.T) {
	a := strings.Repeat("a", 3_900)
	concat := "type"
	for range 30 {
		concat = "CONCAT(" + concat + ",type)"
	}
	many := make([]dialect, 350)
	for i := range many {
		many[i] = dialect{CESQL: fmt.Sprintf("NOT (type LIKE '%%%s_b%%') AND id != '%d'", a, i)}
	}
	conditions := make([]dialect, 30_000)
	for i := range conditions {
		conditions[i] = dialect{Not: &dialect{Prefix: values{"type": fmt.Sprint(strings.Repeat("a", 700), i)}}}
	}
	e := newEvent("type", strings.Repeat("a", 60_000))
	for name, in := range map[string][]dialect{
		"LIKE with _":     {{CESQL: "type LIKE '%" + a + "_b%'"}},
		"many LIKE":       many,
		"CONCAT":          {{CESQL: "LENGTH(CONCAT(" + strings.Repeat("type,", 800) + "type)) = 1"}},
		"CONCAT_WS":       {{CESQL: "LENGTH(CONCAT_WS(type" + strings.Repeat(",'a'", 1000) + ")) = 1"}},
		"nested CONCAT":   {{CESQL: "LENGTH(" + concat + ") = 1"}},
		"UPPER":           {{CESQL: "UPPER(" + strings.Repeat("LOWER(UPPER(", 15) + "type" + strings.Repeat("))", 15) + ") = 'A'"}},
		"IN":              {{CESQL: "id IN (" + strings.Repeat("UPPER(type),", 300) + "'a')"}},
		"casts":           {{CESQL: strings.Repeat("IS_INT(CONCAT('0',type)) OR ", 100) + "FALSE"}},
		"many conditions": {{All: conditions}},
	} {
		f := compiled(t, nil, in...)
		used, ok := steps(f, e)
		if ok || used > maxFilterSteps {
			t.Errorf("%s: %d steps, within the budget: %v; want at most %d, beyond the budget", name, used, ok, maxFilterSteps)
		}
		// The same filters are within the budget for an event of common size.
		if _, ok := steps(f, newEvent("type", "com.example.order.placed")); !ok && name != "many conditions" {
			t.Errorf("%s: exceeds the budget for a short type", name)
		}
	}
}

// TestExceededFilter checks that a filter without enough budget does not match, not even if it is negated, and that cheap
// filters match regardless of the cost of others.
func TestExceededFilter(t *testing.T) {
	costly := dialect{CESQL: "type LIKE '%" + strings.Repeat("a", 3_900) + "_b%'"}
	x := &Index[string, string]{}
	for i := range 100 {
		x = x.With(fmt.Sprint("costly", i), compiled(t, nil, dialect{Not: &costly}), "costly")
		x = x.With(fmt.Sprint("cheap", i), compiled(t, nil, dialect{Not: &dialect{CESQL: "type LIKE '%b'"}}), "cheap")
	}
	b := NewBudget(t.Context())
	matched, exceeded := x.Match(b, newEvent("type", strings.Repeat("a", 60_000)), nil)
	if cheap := strings.Join(matched, " "); cheap != strings.TrimSpace(strings.Repeat("cheap ", 100)) {
		t.Errorf("found %q, want all cheap filters", cheap)
	}
	if got := strings.Join(exceeded, " "); got != strings.TrimSpace(strings.Repeat("costly ", 100)) {
		t.Errorf("exceeded %q, want all costly filters", got)
	}
	if limit := sharedSteps + 200*allowance; b.total > limit {
		t.Errorf("%d steps, want at most %d", b.total, limit)
	}
	if b.Err() != nil {
		t.Errorf("the budget has error %v without one of the context", b.Err())
	}
	// Shared steps that one event does not use remain for the next.
	if matched, exceeded = x.Match(b, newEvent("type", "b"), nil); len(matched) != 100 || len(exceeded) != 0 {
		t.Errorf("%d filters match a short event, %d exceed the budget; want 100 and none", len(matched), len(exceeded))
	}
}

// TestUnusedStepsAreReturned evaluates a filter that exceeds its allowance repeatedly.
func TestUnusedStepsAreReturned(t *testing.T) {
	f := compiled(t, nil, dialect{CESQL: "NOT (type LIKE '%a%')"})
	e := newEvent("type", strings.Repeat("b", 2*allowance))
	b := NewBudget(t.Context())
	for range sharedSteps / drawSteps * 2 {
		if matched, ok := f.Match(b, e); !matched || !ok {
			t.Fatalf("matches %v, within the budget %v, with %d shared steps left", matched, ok, b.shared)
		}
	}
	if want := b.total - b.filters*allowance; sharedSteps-b.shared > want {
		t.Errorf("%d shared steps were used, want at most %d", sharedSteps-b.shared, want)
	}
}

func TestCanceled(t *testing.T) {
	x := new(Index[int, int]).With(0, compiled(t, nil, dialect{Not: &dialect{Exact: values{"type": "a"}}}), 0)
	ctx, cancel := context.WithCancel(t.Context())
	b := NewBudget(ctx)
	if matched, _ := x.Match(b, newEvent("type", "b"), nil); len(matched) != 1 || b.Err() != nil {
		t.Fatalf("found %v, error %v", matched, b.Err())
	}
	cancel()
	for range checkFilters {
		x.Match(b, newEvent("type", "b"), nil)
	}
	if !errors.Is(b.Err(), context.Canceled) {
		t.Errorf("error %v after %d filters, want %v", b.Err(), checkFilters, context.Canceled)
	}
}

// TestManyConditions finds an entry by many of its conditions, once.
func TestManyConditions(t *testing.T) {
	for _, n := range []int{fewConditions, fewConditions + 1, 300} {
		alternatives := make([]dialect, n)
		for i := range alternatives {
			alternatives[i] = dialect{Prefix: values{"type": strings.Repeat("a", i+1)}}
		}
		x := new(Index[int, int]).With(0, compiled(t, nil, dialect{Any: alternatives}), 0)
		b := NewBudget(t.Context())
		if matched, _ := x.Match(b, newEvent("type", strings.Repeat("a", n)), nil); len(matched) != 1 || b.filters != 1 {
			t.Errorf("%d conditions: found %v, evaluated %d times", n, matched, b.filters)
		}
	}
}

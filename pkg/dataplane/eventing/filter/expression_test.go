package filter

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/sql/v2/parser"
	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// TestLike covers CESQL 3.4.4.
func TestLike(t *testing.T) {
	for _, tt := range []struct {
		pattern, yes, no string
	}{
		{"", "", "a"},
		{"abc", "abc", "abcd ab Abc"},
		{"%", "* a abc", ""},
		{"a%", "a ab a%", "ba"},
		{"%c", "c abc %ac", "ca"},
		{"a%c", "ac abc acc", "a c aca"},
		{"%b%", "b abc %ab", "ac"},
		{"_", "a %", "* ab"},
		{"a_c", "abc a_c", "ac abbc"},
		{"%_b%", "ab xabx %ab", "b ba"},
		{"%a_c%b", "xabcb aacacb", "abc acb"},
		{`a\%`, "a%", `ab a\ a\b`},
		{`a\_`, "a_", `ab a\ a\b`},
		{`\\%`, `\%`, `\a \`},
		{`a\b`, `a\b`, "ab"},
		{"%%a%%", "a bab", "b"},
		{"a%a", "aa aba", "a"},
	} {
		p := parsePattern(tt.pattern)
		check := func(texts string, want bool) {
			for text := range strings.FieldsSeq(texts) {
				text = strings.ReplaceAll(text, "*", "")
				b := NewBudget(context.Background())
				b.begin()
				if got := p.matches(text, b); got != want {
					t.Errorf("%q LIKE %q is %v", text, tt.pattern, got)
				}
			}
		}
		check(tt.yes, true)
		check(tt.no, false)
	}
}

// TestExpressions compares values with the SDK's. Only its LIKE differs: it treats a % in the text like one in the pattern.
func TestExpressions(t *testing.T) {
	e := newEvent("type", "order.placed", "region", "eu", "subject", "7", "time", "2020-01-01T00:00:00Z")
	e.Attributes = append(e.Attributes, event.Attribute{Name: "number", Value: "-5", Type: event.Integer},
		event.Attribute{Name: "flag", Value: "true", Type: event.Boolean})
	converted, err := e.ToSDK()
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 5_000 {
		source := anyExpression(r, 4)
		reference, err := parser.Parse(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		q, err := parse(source)
		if err != nil {
			t.Fatalf("%s: %v", source, err)
		}
		want, wantErr := evaluated(func() (any, error) { return reference.Evaluate(*converted) })
		b := NewBudget(t.Context())
		b.begin()
		got, gotErr := evaluated(func() (any, error) {
			value, ok := q.expression.evaluate(b.of(e))
			if !ok {
				return nil, fmt.Errorf("no value")
			}
			return value, nil
		})
		if (wantErr == nil) != (gotErr == nil) || wantErr == nil && !cmp.Equal(want, got) || b.exceeded {
			t.Errorf("%s is %v, %v; the SDK has %v, %v", source, got, gotErr, want, wantErr)
		}
	}
}

// evaluated returns the panics of functions as errors.
func evaluated(evaluate func() (any, error)) (value any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return evaluate()
}

// anyExpression returns a random expression of a depth.
func anyExpression(r *rand.Rand, depth int) string {
	pick := func(of ...string) string { return of[r.IntN(len(of))] }
	if depth == 0 {
		return pick("type", "region", "subject", "number", "flag", "id", "time", "source", "specversion", "missing", "TRUE", "false", "0", "7", "-5",
			"2147483647", "'7'", "'eu'", "'true'", `'it\'s'`, `"order.placed"`, "''")
	}
	operand := func() string { return anyExpression(r, r.IntN(depth)) }
	switch r.IntN(9) {
	case 0:
		return pick("NOT ", "- ") + "(" + operand() + ")"
	case 1:
		return "(" + operand() + ")" + pick(" LIKE ", " NOT LIKE ") + pick("'%'", "'e_'", "'order%'", "'%.%'", "'%laced'", "'_'", "''", "'o%r%e%'")
	case 2:
		return "EXISTS " + pick("type", "missing", "time", "number")
	case 3:
		return "(" + operand() + ")" + pick(" IN (", " NOT IN (") + operand() + ", " + operand() + ")"
	case 4:
		return "(" + operand() + pick(" AND ", " OR ", " XOR ", " and ") + operand() + ")"
	case 5:
		return "(" + operand() + pick(" = ", " != ", " <> ", " < ", " <= ", " > ", " >= ") + operand() + ")"
	case 6:
		return "(" + operand() + pick(" + ", " - ", " * ", " / ", " % ") + operand() + ")"
	case 7:
		return pick("INT(", "BOOL(", "STRING(", "IS_INT(", "IS_BOOL(", "ABS(", "LENGTH(", "LOWER(", "upper(", "TRIM(", "NOSUCH(") + operand() + ")"
	default:
		return pick("CONCAT(", "CONCAT_WS(", "LEFT(", "RIGHT(", "SUBSTRING(") + operand() + ", " + operand() + pick("", ", "+operand()) + ")"
	}
}

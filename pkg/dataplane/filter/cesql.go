package filter

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/antlr/antlr4/runtime/Go/antlr"
	sql "github.com/cloudevents/sdk-go/sql/v2"
	"github.com/cloudevents/sdk-go/sql/v2/gen"
	"github.com/cloudevents/sdk-go/sql/v2/parser"
)

// query is a CloudEvents SQL expression.
type query struct {
	expression sql.Expression
	// required are conditions that hold for all events the expression is true for, as far as they are known.
	required []condition
}

// parse returns an expression. The parser panics on many a syntax error.
func parse(expression string) (q *query, err error) {
	defer func() {
		if recover() != nil {
			q, err = nil, errors.New("cesql: syntax error")
		}
	}()
	parsed, err := parser.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("cesql: %w", err)
	}
	return &query{expression: parsed, required: required(tree(expression))}, nil
}

// matches tells whether the expression is true. One that cannot be evaluated, as it asks for attributes that the event
// does not have, is not; nor is one whose value is no boolean.
func (q *query) matches(s *subject) (matched bool) {
	for i := range q.required {
		if !q.required[i].holds(s.event) {
			return false
		}
	}
	defer func() {
		// The functions of the language see whatever events hold.
		if recover() != nil {
			matched = false
		}
	}()
	e := s.converted()
	if e == nil {
		return false
	}
	value, err := q.expression.Evaluate(*e)
	return err == nil && value == true
}

// tree returns the syntax tree of an expression, of which parser.Parse shows nothing.
func tree(expression string) antlr.Tree {
	lexer := gen.NewCESQLParserLexer(parser.NewCaseChangingStream(antlr.NewInputStream(expression), true))
	lexer.RemoveErrorListeners()
	p := gen.NewCESQLParserParser(antlr.NewCommonTokenStream(lexer, antlr.TokenDefaultChannel))
	p.RemoveErrorListeners()
	return p.Cesql()
}

// reformatted are the attributes whose text the language may see in another form than they came in.
var reformatted = []string{"specversion", "source", "time", "dataschema"}

// required returns the comparisons of attributes with a string that must be true for an expression to be.
func required(t antlr.Tree) []condition {
	switch t := t.(type) {
	case *gen.CesqlContext:
		return required(t.Expression())
	case *gen.SubExpressionContext:
		return required(t.Expression())
	case *gen.BinaryLogicExpressionContext:
		if t.AND() != nil {
			return append(required(t.Expression(0)), required(t.Expression(1))...)
		}
	case *gen.BinaryComparisonExpressionContext:
		if t.EQUAL() == nil {
			return nil
		}
		name, named := identifier(t.Expression(0))
		value, plain := literal(t.Expression(1))
		if named && plain && value != "" && !slices.Contains(reformatted, name) {
			return []condition{{op: exact, name: name, value: value}}
		}
	}
	return nil
}

// identifier returns the name of an attribute.
func identifier(t antlr.Tree) (name string, found bool) {
	if atom, ok := t.(*gen.AtomExpressionContext); ok {
		if id, ok := atom.Atom().(*gen.IdentifierAtomContext); ok {
			return strings.ToLower(id.GetText()), true
		}
	}
	return "", false
}

// literal returns the value of a string that has no quotes in it, nor escapes.
func literal(t antlr.Tree) (value string, found bool) {
	if atom, ok := t.(*gen.AtomExpressionContext); ok {
		if text, ok := atom.Atom().(*gen.StringAtomContext); ok {
			quoted := text.GetText()
			value = quoted[1 : len(quoted)-1]
			return value, !strings.ContainsAny(value, `'"\`)
		}
	}
	return "", false
}

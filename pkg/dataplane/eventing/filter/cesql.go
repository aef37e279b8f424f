package filter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/antlr/antlr4/runtime/Go/antlr"
	"github.com/cloudevents/sdk-go/sql/v2/gen"
	"github.com/cloudevents/sdk-go/sql/v2/parser"
	"github.com/cloudevents/sdk-go/sql/v2/runtime"
)

// query is a CloudEvents SQL expression.
type query struct {
	expression expression
	// required lists conditions that hold for each event for which the expression is true. It may be incomplete.
	required []condition
}

// parse returns an expression. The parser panics on many syntax errors.
func parse(source string) (q *query, err error) {
	defer func() {
		if recover() != nil {
			q, err = nil, errSyntax
		}
	}()
	faults := &syntaxErrors{}
	lexer := gen.NewCESQLParserLexer(parser.NewCaseChangingStream(antlr.NewInputStream(source), true))
	lexer.RemoveErrorListeners()
	p := gen.NewCESQLParserParser(antlr.NewCommonTokenStream(lexer, antlr.TokenDefaultChannel))
	p.RemoveErrorListeners()
	p.AddErrorListener(faults)
	tree := p.Cesql()
	if faults.found {
		return nil, errSyntax
	}
	compiled, err := compileExpression(tree)
	if err != nil {
		return nil, fmt.Errorf("cesql: %w", err)
	}
	return &query{expression: compiled, required: required(tree)}, nil
}

var errSyntax = errors.New("cesql: syntax error")

// syntaxErrors reports whether the parser found any.
type syntaxErrors struct {
	antlr.DefaultErrorListener
	found bool
}

func (s *syntaxErrors) SyntaxError(antlr.Recognizer, any, int, int, string, antlr.RecognitionException) {
	s.found = true
}

// matches reports whether the expression is true. It is false if it cannot be evaluated, such as for a missing attribute, or
// if its value is not a boolean.
func (q *query) matches(s *subject) (matched bool) {
	for i := range q.required {
		if !s.spend(q.required[i].cost(s.event)) || !q.required[i].holds(s.event) {
			return false
		}
	}
	if s.converted() == nil {
		return false
	}
	defer func() {
		// The functions of the language get any value that an event has.
		if recover() != nil {
			matched = false
		}
	}()
	value, ok := q.expression.evaluate(s)
	return ok && value == true
}

// compileExpression returns the expression of a syntax tree.
func compileExpression(t antlr.Tree) (expression, error) {
	switch t := t.(type) {
	case *gen.CesqlContext:
		return compileExpression(t.Expression())
	case *gen.SubExpressionContext:
		return compileExpression(t.Expression())
	case *gen.AtomExpressionContext:
		return compileAtom(t.Atom())
	case *gen.ExistsExpressionContext:
		return exists(strings.ToLower(t.Identifier().GetText())), nil
	case *gen.UnaryLogicExpressionContext:
		of, err := compileExpression(t.Expression())
		return negation{of}, err
	case *gen.UnaryNumericExpressionContext:
		of, err := compileExpression(t.Expression())
		return minus{of}, err
	case *gen.LikeExpressionContext:
		of, err := compileExpression(t.Expression())
		return negatedIf(t.NOT() != nil, like{of, parsePattern(unquote(t.StringLiteral().GetText()))}), err
	case *gen.InExpressionContext:
		of, err := compileExpression(t.Expression())
		if err != nil {
			return nil, err
		}
		set, err := compileExpressions(t.SetExpression().(*gen.SetExpressionContext).AllExpression())
		return negatedIf(t.NOT() != nil, in{of, set}), err
	case *gen.BinaryMultiplicativeExpressionContext, *gen.BinaryAdditiveExpressionContext, *gen.BinaryComparisonExpressionContext,
		*gen.BinaryLogicExpressionContext:
		operands, err := compileExpressions([]gen.IExpressionContext{t.GetChild(0).(gen.IExpressionContext), t.GetChild(2).(gen.IExpressionContext)})
		if err != nil {
			return nil, err
		}
		return binary{strings.ToUpper(t.GetChild(1).(antlr.TerminalNode).GetText()), operands[0], operands[1]}, nil
	case *gen.FunctionInvocationExpressionContext:
		arguments, err := compileExpressions(t.FunctionParameterList().(*gen.FunctionParameterListContext).AllExpression())
		return call{runtime.ResolveFunction(t.FunctionIdentifier().GetText(), len(arguments)), arguments}, err
	}
	return nil, fmt.Errorf("unknown expression %T", t)
}

func compileExpressions(trees []gen.IExpressionContext) ([]expression, error) {
	compiled := make([]expression, len(trees))
	for i, t := range trees {
		var err error
		if compiled[i], err = compileExpression(t); err != nil {
			return nil, err
		}
	}
	return compiled, nil
}

func compileAtom(t antlr.Tree) (expression, error) {
	switch t := t.(type) {
	case *gen.IdentifierAtomContext:
		return identifier(strings.ToLower(t.GetText())), nil
	case *gen.StringAtomContext:
		return literal{unquote(t.GetText())}, nil
	case *gen.BooleanAtomContext:
		return literal{strings.EqualFold(t.GetText(), "true")}, nil
	case *gen.IntegerAtomContext:
		n, err := strconv.ParseInt(t.GetText(), 10, 32)
		return literal{int32(n)}, err
	}
	return nil, fmt.Errorf("unknown atom %T", t)
}

func negatedIf(negated bool, e expression) expression {
	if negated {
		return negation{e}
	}
	return e
}

// unquote returns the value of a string literal.
func unquote(text string) string {
	quote := text[:1]
	return strings.ReplaceAll(text[1:len(text)-1], `\`+quote, quote)
}

// reformatted has the attributes whose text the SDK may change.
var reformatted = []string{"specversion", "source", "time", "dataschema", "schemaurl"}

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
		name, named := attributeOf(t.Expression(0))
		value, plain := plainString(t.Expression(1))
		if named && plain && value != "" && !slices.Contains(reformatted, name) {
			return []condition{{op: exact, name: name, value: value}}
		}
	}
	return nil
}

// attributeOf returns the name of an attribute.
func attributeOf(t antlr.Tree) (name string, found bool) {
	if atom, ok := t.(*gen.AtomExpressionContext); ok {
		if id, ok := atom.Atom().(*gen.IdentifierAtomContext); ok {
			return strings.ToLower(id.GetText()), true
		}
	}
	return "", false
}

// plainString returns the value of a string without quotes and escapes.
func plainString(t antlr.Tree) (value string, found bool) {
	if atom, ok := t.(*gen.AtomExpressionContext); ok {
		if text, ok := atom.Atom().(*gen.StringAtomContext); ok {
			quoted := text.GetText()
			value = quoted[1 : len(quoted)-1]
			return value, !strings.ContainsAny(value, `'"\`)
		}
	}
	return "", false
}

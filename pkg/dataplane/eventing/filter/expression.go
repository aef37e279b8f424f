package filter

import (
	"slices"
	"strconv"
	"strings"

	sql "github.com/cloudevents/sdk-go/sql/v2"
	"github.com/cloudevents/sdk-go/sql/v2/utils"
)

// expression is a node of a CloudEvents SQL expression. The SDK's own expressions can neither be stopped nor report
// their cost.
type expression interface {
	// evaluate returns a bool, an int32 or a string. ok is false if there is no value, because of an error or of the
	// budget, which it spends before it takes the steps.
	evaluate(s *subject) (value any, ok bool)
}

type (
	literal struct{ value any }
	// identifier is the value of an attribute, exists whether the event has it.
	identifier string
	exists     string
	negation   struct{ of expression }
	minus      struct{ of expression }
	like       struct {
		of      expression
		pattern pattern
	}
	in struct {
		of  expression
		set []expression
	}
	binary struct {
		operator    string
		left, right expression
	}
	// call is a call of a function, which is nil if the function does not exist.
	call struct {
		function  sql.Function
		arguments []expression
	}
)

func (l literal) evaluate(s *subject) (any, bool) { return l.value, s.spend(nodeCost) }

func (i identifier) evaluate(s *subject) (any, bool) {
	if !s.spend(nodeCost) {
		return nil, false
	}
	e := s.converted()
	if e == nil {
		return nil, false
	}
	value := utils.GetAttribute(*e, string(i))
	if slices.Contains(reformatted, string(i)) && !s.spend(size(value)) {
		return nil, false
	}
	return value, value != nil
}

func (x exists) evaluate(s *subject) (any, bool) {
	if !s.spend(nodeCost) {
		return nil, false
	}
	e := s.converted()
	return e != nil && utils.ContainsAttribute(*e, string(x)), e != nil
}

func (n negation) evaluate(s *subject) (any, bool) {
	value, ok := evaluate[bool](n.of, s, sql.BooleanType)
	return !value, ok
}

func (m minus) evaluate(s *subject) (any, bool) {
	value, ok := evaluate[int32](m.of, s, sql.IntegerType)
	return -value, ok
}

func (l like) evaluate(s *subject) (any, bool) {
	text, ok := evaluate[string](l.of, s, sql.StringType)
	return ok && l.pattern.matches(text, s.budget), ok && !s.budget.exceeded
}

func (i in) evaluate(s *subject) (any, bool) {
	value, ok := i.of.evaluate(s)
	if !ok {
		return nil, false
	}
	for _, element := range i.set {
		other, ok := element.evaluate(s)
		if ok {
			other, ok = cast(other, sql.TypeFromVal(value), s)
		}
		if !ok || !s.spend(size(value)) {
			return nil, false
		}
		if value == other {
			return true, true
		}
	}
	return false, true
}

func (b binary) evaluate(s *subject) (any, bool) {
	if !s.spend(nodeCost) {
		return nil, false
	}
	switch b.operator {
	case "AND", "OR", "XOR":
		left, ok := evaluate[bool](b.left, s, sql.BooleanType)
		if !ok || b.operator == "AND" && !left || b.operator == "OR" && left {
			return left, ok
		}
		right, ok := evaluate[bool](b.right, s, sql.BooleanType)
		return right != (b.operator == "XOR" && left), ok
	case "=", "!=", "<>":
		left, ok := b.left.evaluate(s)
		if !ok {
			return nil, false
		}
		right, ok := b.right.evaluate(s)
		if ok {
			left, ok = cast(left, sql.TypeFromVal(right), s)
		}
		if !ok || !s.spend(size(right)) {
			return nil, false
		}
		return (left == right) == (b.operator == "="), true
	}
	left, ok := evaluate[int32](b.left, s, sql.IntegerType)
	if !ok {
		return nil, false
	}
	right, ok := evaluate[int32](b.right, s, sql.IntegerType)
	if !ok {
		return nil, false
	}
	return arithmetic(b.operator, left, right)
}

func arithmetic(operator string, left, right int32) (any, bool) {
	switch operator {
	case "<":
		return left < right, true
	case "<=":
		return left <= right, true
	case ">":
		return left > right, true
	case ">=":
		return left >= right, true
	case "+":
		return left + right, true
	case "-":
		return left - right, true
	case "*":
		return left * right, true
	}
	if right == 0 {
		return nil, false
	}
	if operator == "/" {
		return left / right, true
	}
	return left % right, true
}

func (c call) evaluate(s *subject) (any, bool) {
	if c.function == nil || !s.spend(nodeCost) {
		return nil, false
	}
	arguments, cost := make([]any, len(c.arguments)), 0
	for i, argument := range c.arguments {
		value, ok := argument.evaluate(s)
		if t := c.function.ArgType(i); ok && t != nil {
			value, ok = cast(value, *t, s)
		}
		if !ok {
			return nil, false
		}
		arguments[i] = value
		cost += size(value)
	}
	if c.function.Name() == "CONCAT_WS" {
		cost += len(arguments) * size(arguments[0])
	}
	if !s.spend(cost) {
		return nil, false
	}
	// The SDK formats strings that it cannot cast into an error.
	switch c.function.Name() {
	case "INT":
		return cast(arguments[0], sql.IntegerType, s)
	case "IS_INT":
		_, ok := cast(arguments[0], sql.IntegerType, s)
		return ok, !s.budget.exceeded
	case "BOOL":
		return cast(arguments[0], sql.BooleanType, s)
	case "IS_BOOL":
		_, ok := cast(arguments[0], sql.BooleanType, s)
		return ok, !s.budget.exceeded
	}
	value, err := c.function.Run(*s.converted(), arguments)
	return value, err == nil && value != nil
}

// evaluate returns the value of an expression as T, the Go type of t.
func evaluate[T bool | int32 | string](e expression, s *subject, t sql.Type) (T, bool) {
	value, ok := e.evaluate(s)
	if ok {
		value, ok = cast(value, t, s)
	}
	if !ok {
		return *new(T), false
	}
	return value.(T), true
}

// cast returns a value as one of another type (CESQL 3.7).
func cast(value any, to sql.Type, s *subject) (any, bool) {
	if to == sql.AnyType || to.IsSameType(value) {
		return value, true
	}
	switch to {
	case sql.StringType:
		switch value := value.(type) {
		case int32:
			return strconv.Itoa(int(value)), true
		case bool:
			return strconv.FormatBool(value), true
		}
	case sql.IntegerType:
		switch value := value.(type) {
		case string:
			if !s.spend(len(value)) {
				return nil, false
			}
			n, err := strconv.ParseInt(value, 10, 32)
			return int32(n), err == nil
		case bool:
			if value {
				return int32(1), true
			}
			return int32(0), true
		}
	case sql.BooleanType:
		switch value := value.(type) {
		case string:
			if len(value) > len("false") {
				return nil, false
			}
			lower := strings.ToLower(value)
			return lower == "true", lower == "true" || lower == "false"
		case int32:
			return value != 0, true
		}
	}
	return nil, false
}

// size returns the number of bytes of a string, and 0 for other values.
func size(value any) int {
	text, _ := value.(string)
	return len(text)
}

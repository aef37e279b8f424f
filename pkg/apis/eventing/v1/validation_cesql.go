package v1

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/sql/v2/parser"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxCESQLLength bounds a CESQL expression, in bytes.
const maxCESQLLength = 4096

// validateCESQL returns the error of a CloudEvents SQL expression. Empty means that the dialect is not set.
func validateCESQL(expression string, path *field.Path) field.ErrorList {
	if expression == "" {
		return nil
	}
	if len(expression) > maxCESQLLength {
		return field.ErrorList{field.TooLong(path, "", maxCESQLLength)}
	}
	if _, err := scanCESQL(expression); err != nil {
		return field.ErrorList{field.Invalid(path, expression, err.Error())}
	}
	if err := parseCESQL(expression); err != nil {
		return field.ErrorList{field.Invalid(path, expression, "must be a CloudEvents SQL expression: "+err.Error())}
	}
	return nil
}

// parseCESQL runs the parser, which panics on many syntax errors.
func parseCESQL(expression string) (err error) {
	defer func() {
		if recover() != nil {
			err = errors.New("syntax error")
		}
	}()
	if _, err := parser.Parse(expression); err != nil {
		return errors.New(strings.TrimRight(strings.TrimPrefix(err.Error(), "parse error: "), ": "))
	}
	return nil
}

// operators are the words that may precede a parenthesis without being a function call.
var operators = []string{"AND", "OR", "XOR", "NOT", "IN", "LIKE", "EXISTS"}

// scanCESQL rejects input that must not reach the parser: characters that are not part of a token, which its lexer prints to
// standard error and then skips, so that a different expression than the given one would take effect; and deep or unbalanced
// parentheses, which it takes seconds to reject. calls is the number of LIKE operators and function calls.
func scanCESQL(expression string) (calls int, err error) {
	depth := 0
	// named reports whether a name precedes the character, which makes a parenthesis a function call.
	named := false
	for i := 0; i < len(expression); {
		switch c := expression[i]; {
		case c == '\'' || c == '"':
			end := endOfString(expression, i)
			if end < 0 {
				return 0, fmt.Errorf("must close the string that starts with %c at position %d", c, i+1)
			}
			i, named = end, false
			continue
		case isWordCharacter(c):
			end := i + 1
			for end < len(expression) && isWordCharacter(expression[end]) {
				end++
			}
			word := expression[i:end]
			if strings.Contains(word, "_") && (c == '_' || strings.ContainsAny(word, "0123456789")) {
				return 0, fmt.Errorf("must not contain '%s': only names of letters may have underscores", word)
			}
			if strings.EqualFold(word, "LIKE") {
				calls++
			}
			i, named = end, !slices.Contains(operators, strings.ToUpper(word))
			continue
		case c == '(':
			if named {
				calls++
			}
			if depth++; depth > maxFilterDepth {
				return 0, fmt.Errorf("must not nest parentheses deeper than %d", maxFilterDepth)
			}
		case c == ')':
			if depth--; depth < 0 {
				return 0, fmt.Errorf("must open the parenthesis that is closed at position %d", i+1)
			}
		case c == '!' && !strings.HasPrefix(expression[i:], "!="), !strings.ContainsRune(" \t\r\n,*/%+-=<>!", rune(c)):
			return 0, fmt.Errorf("must not contain %q outside of strings, as at position %d", firstRune(expression[i:]), i+1)
		}
		named = named && strings.IndexByte(" \t\r\n", expression[i]) >= 0
		i++
	}
	if depth > 0 {
		return 0, errors.New("must close all parentheses")
	}
	return calls, nil
}

// endOfString returns the end of the string literal that starts at an index, or -1 if it is unterminated. A backslash escapes
// the next character; a doubled quote scans as two strings, which is equivalent here.
func endOfString(expression string, start int) int {
	for i := start + 1; i < len(expression); i++ {
		switch expression[i] {
		case '\\':
			i++
		case expression[start]:
			return i + 1
		}
	}
	return -1
}

func isWordCharacter(c byte) bool {
	return c == '_' || '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func firstRune(s string) rune {
	for _, r := range s {
		return r
	}
	return 0
}

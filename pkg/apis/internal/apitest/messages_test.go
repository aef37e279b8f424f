package apitest

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// unclear matches words that validation messages must not contain: "should" leaves open whether a rule is mandatory, and
// inequalities are "less than" and "greater than".
var unclear = regexp.MustCompile(`(?i)\bshould\b|\b(larger|bigger|more|higher|smaller|lower) than\b| [<>]=? `)

// TestMessages checks the messages of validation errors in all API packages (conventions Validation-2 and -4): the texts in the
// files that hold rules. "may not hold more than one" is allowed, because it counts and does not compare values.
func TestMessages(t *testing.T) {
	files, err := filepath.Glob("../../*/v1/validation_*.go")
	if err != nil {
		t.Fatal(err)
	}
	messages := 0
	for _, file := range files {
		if match, _ := filepath.Match("*_test.go", filepath.Base(file)); match {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(node ast.Node) bool {
			literal, ok := node.(*ast.BasicLit)
			if !ok || literal.Kind != token.STRING {
				return true
			}
			text, err := strconv.Unquote(literal.Value)
			if err != nil {
				t.Fatal(err)
			}
			messages++
			if word := unclear.FindString(text); word != "" && !regexp.MustCompile(`may not hold more than `).MatchString(text) {
				t.Errorf("%s: %q says %q", filepath.Base(file), text, word)
			}
			return true
		})
	}
	if messages < 100 {
		t.Errorf("only %d texts were found", messages)
	}
}

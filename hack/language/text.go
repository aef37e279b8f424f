package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"unicode"
)

// text is the part of a file that people read.
type text struct {
	prose []passage
	// names are declared identifiers, package names and file names.
	names []span
}

// passage is a sequence of lines that are read as one, such as a paragraph.
type passage []span

// span is a piece of a file on one line.
type span struct {
	line int
	text string
}

// join returns the passage on a single line.
func (p passage) join() string {
	lines := make([]string, len(p))
	for i, span := range p {
		lines[i] = span.text
	}
	return strings.Join(lines, " ")
}

// line returns the line of the file at an offset in the joined passage.
func (p passage) line(offset int) int {
	for _, span := range p {
		if offset <= len(span.text) {
			return span.line
		}
		offset -= len(span.text) + 1
	}
	return p[len(p)-1].line
}

// paragraphs splits a sequence of lines at the empty ones.
func paragraphs(lines []span) []passage {
	var result []passage
	var current passage
	for _, line := range lines {
		line.text = strings.TrimSpace(line.text)
		if line.text != "" {
			current = append(current, line)
			continue
		}
		if current != nil {
			result, current = append(result, current), nil
		}
	}
	if current != nil {
		result = append(result, current)
	}
	return result
}

// spans numbers the lines of a text, beginning with first.
func spans(text string, first int) []span {
	var result []span
	for i, line := range strings.Split(text, "\n") {
		result = append(result, span{first + i, line})
	}
	return result
}

// readGo returns the comments, string literals and declared names of a Go file, and nothing of a generated one.
func readGo(path string, source []byte) (*text, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return nil, fmt.Errorf("parse Go: %w", err)
	}
	result := &text{}
	if ast.IsGenerated(file) {
		return result, nil
	}
	line := func(node ast.Node) int { return files.Position(node.Pos()).Line }
	for _, group := range file.Comments {
		var lines []span
		for _, comment := range group.List {
			content := strings.TrimPrefix(comment.Text, "//")
			content = strings.TrimSuffix(strings.TrimPrefix(content, "/*"), "*/")
			lines = append(lines, spans(content, line(comment))...)
		}
		result.prose = append(result.prose, paragraphs(lines)...)
	}
	name := strings.TrimSuffix(filepath.Base(path), ".go")
	result.names = append(result.names, span{1, name}, span{line(file.Name), file.Name.Name})
	declare := func(identifiers ...*ast.Ident) {
		for _, identifier := range identifiers {
			result.names = append(result.names, span{line(identifier), identifier.Name})
		}
	}
	declareAll := func(expressions ...ast.Expr) {
		for _, expression := range expressions {
			if identifier, ok := expression.(*ast.Ident); ok {
				declare(identifier)
			}
		}
	}
	ast.Inspect(file, func(node ast.Node) bool {
		switch node := node.(type) {
		case *ast.ImportSpec:
			return false
		case *ast.BasicLit:
			if node.Kind != token.STRING {
				break
			}
			literal, err := strconv.Unquote(node.Value)
			if err != nil {
				break
			}
			if strings.HasPrefix(node.Value, "`") {
				result.prose = append(result.prose, paragraphs(spans(literal, line(node)))...)
			} else {
				result.prose = append(result.prose, passage{{line(node), literal}})
			}
		case *ast.FuncDecl:
			declare(node.Name)
		case *ast.TypeSpec:
			declare(node.Name)
		case *ast.ValueSpec:
			declare(node.Names...)
		case *ast.Field:
			declare(node.Names...)
		case *ast.AssignStmt:
			if node.Tok == token.DEFINE {
				declareAll(node.Lhs...)
			}
		case *ast.RangeStmt:
			if node.Tok == token.DEFINE {
				declareAll(node.Key, node.Value)
			}
		}
		return true
	})
	return result, nil
}

// readMarkdown returns the paragraphs of a Markdown file without its code blocks.
func readMarkdown(_ string, source []byte) (*text, error) {
	lines := spans(string(source), 1)
	fenced := false
	for i, line := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(line.text), "```")
		if fence {
			fenced = !fenced
		}
		if fence || fenced {
			lines[i].text = ""
		}
	}
	return &text{prose: paragraphs(lines)}, nil
}

// hashComment matches a line that is a comment, and captures its text.
var hashComment = regexp.MustCompile(`^\s*#+!?(.*)$`)

// readHash returns the comments of a file whose comments begin with #, in paragraphs, and each other line, which may hold
// a message or a description.
func readHash(_ string, source []byte) (*text, error) {
	result := &text{}
	var comments []span
	for _, line := range spans(string(source), 1) {
		if match := hashComment.FindStringSubmatch(line.text); match != nil {
			comments = append(comments, span{line.line, match[1]})
			continue
		}
		comments = append(comments, span{line.line, ""})
		if strings.TrimSpace(line.text) != "" {
			result.prose = append(result.prose, passage{line})
		}
	}
	result.prose = append(result.prose, paragraphs(comments)...)
	return result, nil
}

// words splits an identifier in camel case or snake case into lower-case words. A run of capitals is one word.
func words(identifier string) []string {
	var result []string
	var word []rune
	flush := func() {
		if len(word) > 0 {
			result = append(result, strings.ToLower(string(word)))
		}
		word = nil
	}
	runes := []rune(identifier)
	for i, r := range runes {
		switch {
		case r == '_' || r == '-' || r == '.':
			flush()
			continue
		case unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])):
			flush()
		}
		word = append(word, r)
	}
	flush()
	return result
}

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// cited maps a clause or a section, such as "serving 6-1", to the tests that cite it, such as "pkg/routing TestName".
type cited map[string][]string

func (c cited) add(ids []string, test string) {
	for _, id := range ids {
		if !slices.Contains(c[id], test) {
			c[id] = append(c[id], test)
		}
	}
}

// citations are the citations by tests. Sections are cited without a clause, which covers no clause.
type citations struct {
	clauses, sections cited
}

func newCitations() citations { return citations{clauses: cited{}, sections: cited{}} }

// findCitations reads the test files of a repository.
func findCitations(root string, grammars []grammar) (citations, error) {
	found := newCitations()
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir():
			if name := entry.Name(); file != root && (strings.HasPrefix(name, ".") || name == "testdata" || name == "generated") {
				return filepath.SkipDir
			}
			return nil
		case !strings.HasSuffix(file, "_test.go"):
			return nil
		}
		relative, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		return found.add(grammars, path.Dir(filepath.ToSlash(relative)), file, nil)
	})
	return found, err
}

// add adds the citations by tests in a file of a package. If source is nil, it is read from the file.
func (c citations) add(grammars []grammar, pkg, file string, source any) error {
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	for _, declaration := range parsed.Decls {
		function, ok := declaration.(*ast.FuncDecl)
		if !ok || !isTest(function) {
			continue
		}
		start := function.Pos()
		if function.Doc != nil {
			start = function.Doc.Pos()
		}
		test := pkg + " " + function.Name.Name
		for _, comment := range parsed.Comments {
			if comment.Pos() < start || comment.End() > function.End() {
				continue
			}
			for _, g := range grammars {
				clauses, sections, err := g.parse(comment.Text())
				if err != nil {
					return fmt.Errorf("%s: %w", files.Position(comment.Pos()), err)
				}
				c.clauses.add(clauses, test)
				c.sections.add(sections, test)
			}
		}
	}
	return nil
}

func isTest(function *ast.FuncDecl) bool {
	if function.Recv != nil {
		return false
	}
	for _, prefix := range []string{"Test", "Fuzz"} {
		if strings.HasPrefix(function.Name.Name, prefix) && function.Name.Name != "TestMain" {
			return true
		}
	}
	return false
}

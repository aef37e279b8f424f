package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// cited is by clause the tests that cite it, such as "pkg/routing TestName".
type cited map[string][]string

// citations looks through the test files of a repository.
func citations(root string) (cited, error) {
	found := cited{}
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
		return found.add(path.Dir(filepath.ToSlash(relative)), file, nil)
	})
	return found, err
}

// add adds what the tests in a file of a package cite. The source is read from the file where it is nil.
func (c cited) add(pkg, file string, source any) error {
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
		for _, comment := range parsed.Comments {
			if comment.Pos() < start || comment.End() > function.End() {
				continue
			}
			ids, err := parseCitations(comment.Text())
			if err != nil {
				return fmt.Errorf("%s: %w", files.Position(comment.Pos()), err)
			}
			for _, id := range ids {
				if name := pkg + " " + function.Name.Name; !slices.Contains(c[id], name) {
					c[id] = append(c[id], name)
				}
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

const (
	clauseNumber = `\d+(?:\.\d+)*-\d{1,3}\b`
	citationItem = clauseNumber + `(?: to ` + clauseNumber + `)?`
)

var (
	citation = regexp.MustCompile(`\bserving (` + citationItem + `(?:(?:,| and|, and) (?:serving )?` + citationItem + `)*)`)
	item     = regexp.MustCompile(`(` + clauseNumber + `)(?: to (` + clauseNumber + `))?`)
)

// parseCitations returns the clauses that a comment cites, ranges as their members. It fails for a range that
// leaves its section or runs backwards.
func parseCitations(comment string) ([]string, error) {
	var ids []string
	for _, list := range citation.FindAllStringSubmatch(strings.Join(strings.Fields(comment), " "), -1) {
		for _, match := range item.FindAllStringSubmatch(list[1], -1) {
			first, last := match[1], match[2]
			if last == "" {
				ids = append(ids, first)
				continue
			}
			from, to := numberOf(first), numberOf(last)
			if sectionOf(first) != sectionOf(last) || from >= to {
				return nil, fmt.Errorf("'serving %s' must be a range of one section, in its order", match[0])
			}
			for number := from; number <= to; number++ {
				ids = append(ids, sectionOf(first)+"-"+strconv.Itoa(number))
			}
		}
	}
	return ids, nil
}

// numberOf returns what follows the section of a clause.
func numberOf(id string) int {
	_, number, _ := strings.Cut(id, "-")
	n, _ := strconv.Atoi(number) // three digits at most
	return n
}

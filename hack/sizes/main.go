// Command sizes prints how large the hand-written production code in cmd and pkg is: lines, the largest packages, and the
// largest types with the number of files that their methods are spread over.
//
// Usage: go run ./hack/sizes [-top N] [DIR]   DIR is the root of a source tree (default: the working directory)
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	top := flag.Int("top", 15, "Number of packages and types to list.")
	flag.Parse()
	root := "."
	if flag.NArg() > 0 {
		root = flag.Arg(0)
	}
	s, err := measure(root, "cmd", "pkg")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s.print(os.Stdout, *top)
}

// sizes are the sizes of a source tree.
type sizes struct {
	files, lines, comments int
	packages               map[string]*packageSize
	types                  map[string]*typeSize
}

// packageSize is the size of one package.
type packageSize struct {
	name                   string
	files, lines, exported int
}

// typeSize is the size of one type. files has the names of the files with its methods.
type typeSize struct {
	name            string
	fields, methods int
	files           map[string]bool
}

// measure returns the sizes of the Go files below the given directories of root, without tests and generated files.
func measure(root string, dirs ...string) (*sizes, error) {
	s := &sizes{packages: map[string]*packageSize{}, types: map[string]*typeSize{}}
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			return s.add(path, filepath.ToSlash(name))
		})
		if err != nil {
			return nil, fmt.Errorf("measure %s: %w", dir, err)
		}
	}
	return s, nil
}

// add adds the file at path, whose name within the tree is name.
func (s *sizes) add(path, name string) error {
	source, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	file, err := parser.ParseFile(token.NewFileSet(), path, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	if ast.IsGenerated(file) {
		return nil
	}
	directory := filepath.ToSlash(filepath.Dir(name))
	p := s.packages[directory]
	if p == nil {
		p = &packageSize{name: directory}
		s.packages[directory] = p
	}
	lines := bytes.Count(source, []byte("\n"))
	s.files++
	s.lines += lines
	p.files++
	p.lines += lines
	for _, group := range file.Comments {
		for _, comment := range group.List {
			s.comments += strings.Count(comment.Text, "\n") + 1
		}
	}
	for _, declaration := range file.Decls {
		switch d := declaration.(type) {
		case *ast.FuncDecl:
			exported := d.Name.IsExported()
			if receiver := receiverOf(d); receiver != "" {
				t := s.typeOf(directory, receiver)
				t.methods++
				t.files[name] = true
				exported = exported && ast.IsExported(receiver)
			}
			if exported {
				p.exported++
			}
		case *ast.GenDecl:
			s.addSpecs(p, directory, d)
		}
	}
	return nil
}

// addSpecs adds the types, variables and constants of a declaration.
func (s *sizes) addSpecs(p *packageSize, directory string, d *ast.GenDecl) {
	for _, spec := range d.Specs {
		switch spec := spec.(type) {
		case *ast.TypeSpec:
			if spec.Name.IsExported() {
				p.exported++
			}
			if structure, ok := spec.Type.(*ast.StructType); ok {
				s.typeOf(directory, spec.Name.Name).fields = structure.Fields.NumFields()
			}
		case *ast.ValueSpec:
			for _, name := range spec.Names {
				if name.IsExported() {
					p.exported++
				}
			}
		}
	}
}

// typeOf returns the size of a type, which it adds if it is new.
func (s *sizes) typeOf(directory, name string) *typeSize {
	key := directory + "." + name
	t := s.types[key]
	if t == nil {
		t = &typeSize{name: key, files: map[string]bool{}}
		s.types[key] = t
	}
	return t
}

// receiverOf returns the name of the type of a method, or nothing for a function.
func receiverOf(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return ""
	}
	expression := d.Recv.List[0].Type
	for {
		switch e := expression.(type) {
		case *ast.StarExpr:
			expression = e.X
		case *ast.IndexExpr:
			expression = e.X
		case *ast.IndexListExpr:
			expression = e.X
		case *ast.Ident:
			return e.Name
		default:
			return ""
		}
	}
}

// print writes the totals and the largest packages and types, at most top of each.
func (s *sizes) print(w io.Writer, top int) {
	fmt.Fprintf(w, "hand-written, without tests: %d lines in %d files of %d packages, %d of them comments\n",
		s.lines, s.files, len(s.packages), s.comments)
	fmt.Fprintf(w, "\n%-45s %8s %8s %10s\n", "package", "lines", "files", "exported")
	packages := sorted(s.packages, func(a, b *packageSize) int {
		return cmp.Or(cmp.Compare(b.lines, a.lines), strings.Compare(a.name, b.name))
	})
	for _, p := range packages[:min(top, len(packages))] {
		fmt.Fprintf(w, "%-45s %8d %8d %10d\n", p.name, p.lines, p.files, p.exported)
	}
	fmt.Fprintf(w, "\n%-45s %8s %8s %10s\n", "type", "methods", "fields", "in files")
	types := sorted(s.types, func(a, b *typeSize) int {
		return cmp.Or(cmp.Compare(b.methods, a.methods), cmp.Compare(b.fields, a.fields), strings.Compare(a.name, b.name))
	})
	for _, t := range types[:min(top, len(types))] {
		fmt.Fprintf(w, "%-45s %8d %8d %10d\n", t.name, t.methods, t.fields, len(t.files))
	}
}

// sorted returns the values of a map in the order of compare.
func sorted[T any](all map[string]T, compare func(a, b T) int) []T {
	values := make([]T, 0, len(all))
	for _, value := range all {
		values = append(values, value)
	}
	slices.SortFunc(values, compare)
	return values
}

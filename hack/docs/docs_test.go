// Package docs checks that the names in the documentation exist: files, directories, make targets, tests, and Go
// identifiers written as `pkg/path.Name`.
package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// TestNames checks the pages of the documentation, and the tests of the security findings.
func TestNames(t *testing.T) {
	tree := readTree(t)
	pages, err := fs.Glob(tree.files, "docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("found %d pages: %v", len(pages), err)
	}
	for _, page := range append(pages, "README.md", "CHANGELOG.md") {
		if page == "docs/conformance.md" {
			continue // generated, and verified by hack/conformance
		}
		text, err := fs.ReadFile(tree.files, page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range tree.missing(page, string(text)) {
			t.Errorf("%s names %s, which does not exist", page, name)
		}
	}
	findings, err := fs.ReadFile(tree.files, "test/security/findings.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(findings)) {
		if fields := strings.Fields(line); fields[0] != "#" {
			if dir := path.Clean(fields[1]); !slices.Contains(tree.tests[dir], fields[2]) {
				t.Errorf("test/security/findings.txt names %s of %s, which does not exist", fields[2], dir)
			}
		}
	}
}

// TestMissing checks the check.
func TestMissing(t *testing.T) {
	tree := readTree(t)
	for text, want := range map[string][]string{
		"`pkg/apis`, `pkg/apis/`, `./pkg/apis/...` and `docs/README.md`": nil,
		"`pkg/nothing`":                                                {"pkg/nothing"},
		"`pkg/apis/{duck,nothing}/v1`":                                 {"pkg/apis/nothing/v1"},
		"`pkg/controllers/<kind>`":                                     nil,
		"`pkg/nothing/<kind>`":                                         {"pkg/nothing/<kind>"},
		"`hack/e2e.sh -run TestX` and `hack/no.sh DIR`":                {"hack/no.sh", "TestX"},
		"`make build lint` and `make nothing X=y z`":                   {"make nothing"},
		"`pkg/backoff.Delay` and `pkg/backoff.Nothing`":                {"pkg/backoff.Nothing"},
		"`pkg/backoff.Delay.Nothing`":                                  {"pkg/backoff.Delay.Nothing"},
		"`pkg/dataplane/flow/idleconn.Checker.Reset`":                  nil,
		"`pkg/certs` `keeper.go` `nothing.go`":                         {"nothing.go"},
		"`pkg/certs`\n## Next\n`keeper.go`":                            {"keeper.go"},
		"`pkg/certs/keeper.go` and `bundle/x.go`":                      {"bundle/x.go"},
		"`pkg/certs` `../backoff/backoff.go` `../backoff/x.go`":        {"../backoff/x.go"},
		"`pkg/controllers` `service/service.go`":                       nil,
		"```\ngo test ./pkg/nothing\n```":                              {"pkg/nothing"},
		"[a](README.md) and [b](../README.md#install-it-on-a-cluster)": nil,
		"[a](none.md), [b](../docs/nothing.png)":                       {"none.md", "../docs/nothing.png"},
		"[a](glossary.md#tests) [b](glossary.md#none) [c](#none)":      {"glossary.md#none", "#none"},
		"`go test -run TestName ./hack/docs`":                          {"TestName"},
		"`go test -run TestNames ./hack/docs`":                         nil,
		"[a](https://example.com/pkg/nothing) `/pkg/nothing`":          nil,
	} {
		if got := tree.missing("docs/glossary.md", text); !slices.Equal(got, want) {
			t.Errorf("%q: missing %q, want %q", text, got, want)
		}
	}
}

// tree is the repository.
type tree struct {
	files fs.FS
	// targets are the targets of the Makefile; tests are the names of tests, benchmarks and fuzz targets by directory.
	targets []string
	tests   map[string][]string
}

var (
	target   = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	testFunc = regexp.MustCompile(`(?m)^func ((?:Test|Benchmark|Fuzz)\w+)\(`)
)

func readTree(t *testing.T) *tree {
	t.Helper()
	r := &tree{files: os.DirFS(root), tests: map[string][]string{}}
	makefile, err := fs.ReadFile(r.files, "Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for _, match := range target.FindAllStringSubmatch(string(makefile), -1) {
		r.targets = append(r.targets, match[1])
	}
	err = fs.WalkDir(r.files, ".", func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != "." && strings.HasPrefix(entry.Name(), "."):
			return fs.SkipDir
		case !strings.HasSuffix(name, "_test.go"):
			return nil
		}
		source, err := fs.ReadFile(r.files, name)
		for _, match := range testFunc.FindAllStringSubmatch(string(source), -1) {
			r.tests[path.Dir(name)] = append(r.tests[path.Dir(name)], match[1])
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

var (
	heading = regexp.MustCompile(`(?m)^#+ `)
	fenced  = regexp.MustCompile("(?ms)^```.*?^```")
	span    = regexp.MustCompile("`[^`\n]+`")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	// ofTree is a path of the repository, with patterns such as <kind> and {a,b}.
	ofTree  = regexp.MustCompile(`^(?:\./)?((?:artifacts|cmd|docs|hack|pkg|test)/[\w./<>{},*-]*)$`)
	goFile  = regexp.MustCompile(`^[\w./<>-]+\.go$`)
	ident   = regexp.MustCompile(`^(.*/[^./]+)\.([A-Z]\w*(?:\.\w+)?)$`)
	test    = regexp.MustCompile(`^(?:Test|Benchmark|Fuzz)[A-Z]\w*$`)
	varying = regexp.MustCompile(`<\w+>`)
	choices = regexp.MustCompile(`\{([^}]*)\}`)
)

// missing returns the names on a page that do not exist, in order.
func (r *tree) missing(page, text string) (names []string) {
	for _, match := range link.FindAllStringSubmatch(text, -1) {
		if !strings.Contains(match[1], "://") && !r.linked(page, match[1]) {
			names = append(names, match[1])
		}
	}
	start := 0
	for _, next := range append(heading.FindAllStringIndex(text, -1), []int{len(text), len(text)}) {
		names = append(names, r.missingIn(text[start:next[0]])...)
		start = next[0]
	}
	return names
}

// missingIn checks a section. A file that is named without its directory belongs to a directory that the section names.
func (r *tree) missingIn(section string) (names []string) {
	var dirs []string
	code := fenced.FindAllString(section, -1)
	code = append(code, span.FindAllString(fenced.ReplaceAllString(section, ""), -1)...)
	var files []string
	for _, piece := range code {
		for line := range strings.Lines(strings.Trim(piece, "`")) {
			words := strings.Fields(line)
			for i, word := range words {
				word = strings.Trim(word, `'"(),;:`)
				if i == 0 && word == "make" {
					names = append(names, r.missingTargets(words[1:])...)
				}
				if match := ofTree.FindStringSubmatch(word); match != nil {
					for _, name := range alternatives(strings.TrimRight(strings.TrimSuffix(match[1], "..."), "/.")) {
						if !r.exists(name) && !r.declared(name) {
							names = append(names, name)
						}
						dirs = append(dirs, name, path.Dir(name))
					}
				} else if goFile.MatchString(word) {
					files = append(files, word)
				}
			}
		}
	}
	for _, file := range files {
		if !slices.ContainsFunc(dirs, func(dir string) bool { return r.below(dir, file) }) {
			names = append(names, file)
		}
	}
	for _, piece := range code {
		for _, word := range strings.Fields(strings.Trim(piece, "`")) {
			if word = strings.Trim(word, `'"(),`); test.MatchString(word) && !r.tested(word) {
				names = append(names, word)
			}
		}
	}
	return names
}

// missingTargets returns the targets that make does not have, up to the first word that is not a target.
func (r *tree) missingTargets(words []string) (names []string) {
	for _, word := range words {
		if strings.ContainsAny(word, "=<[") {
			break
		}
		if !slices.Contains(r.targets, word) {
			names = append(names, "make "+word)
		}
	}
	return names
}

// alternatives expands {a,b} in a path.
func alternatives(name string) []string {
	at := choices.FindStringSubmatchIndex(name)
	if at == nil {
		return []string{name}
	}
	var all []string
	for choice := range strings.SplitSeq(name[at[2]:at[3]], ",") {
		all = append(all, alternatives(name[:at[0]]+choice+name[at[1]:])...)
	}
	return all
}

// exists reports whether a file or directory with a name exists, in which <x> matches any part.
func (r *tree) exists(name string) bool {
	found, err := fs.Glob(r.files, varying.ReplaceAllString(name, "*"))
	return err == nil && len(found) > 0
}

// below reports whether a file exists in a directory or below it.
func (r *tree) below(dir, file string) bool {
	if strings.HasPrefix(file, "../") {
		return r.exists(path.Join(dir, file))
	}
	found := false
	pattern := varying.ReplaceAllString(path.Base(file), "*")
	fs.WalkDir(r.files, dir, func(name string, entry fs.DirEntry, err error) error { //nolint:errcheck // a directory that does not exist has no files
		if err != nil || found {
			return fs.SkipAll
		}
		if matched, _ := path.Match(pattern, entry.Name()); matched && !entry.IsDir() {
			found = path.Dir(file) == "." || strings.HasSuffix(path.Dir(name), "/"+path.Dir(file))
		}
		return nil
	})
	return found
}

// declared reports whether a package declares pkg/path.Name or pkg/path.Type.Member.
func (r *tree) declared(name string) bool {
	match := ident.FindStringSubmatch(name)
	if match == nil {
		return false
	}
	sources, err := filepath.Glob(filepath.Join(root, match[1], "*.go"))
	if err != nil {
		return false
	}
	for _, source := range sources {
		file, err := parser.ParseFile(token.NewFileSet(), source, nil, parser.SkipObjectResolution)
		if err != nil {
			return false
		}
		for _, declaration := range file.Decls {
			if declares(declaration, match[2]) {
				return true
			}
		}
	}
	return false
}

// declares reports whether a declaration declares a name or Type.Member.
func declares(declaration ast.Decl, name string) bool {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		full := d.Name.Name
		if d.Recv != nil {
			receiver := d.Recv.List[0].Type
			if pointer, ok := receiver.(*ast.StarExpr); ok {
				receiver = pointer.X
			}
			if generic, ok := receiver.(*ast.IndexExpr); ok {
				receiver = generic.X
			}
			if typeName, ok := receiver.(*ast.Ident); ok {
				full = typeName.Name + "." + full
			}
		}
		return full == name
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if s.Name.Name == name || hasField(s, name) {
					return true
				}
			case *ast.ValueSpec:
				if slices.ContainsFunc(s.Names, func(i *ast.Ident) bool { return i.Name == name }) {
					return true
				}
			}
		}
	}
	return false
}

// hasField reports whether a type is a struct with the field Type.Field.
func hasField(spec *ast.TypeSpec, name string) bool {
	structure, ok := spec.Type.(*ast.StructType)
	if !ok {
		return false
	}
	for _, field := range structure.Fields.List {
		if slices.ContainsFunc(field.Names, func(i *ast.Ident) bool { return spec.Name.Name+"."+i.Name == name }) {
			return true
		}
	}
	return false
}

// tested reports whether a test has a name.
func (r *tree) tested(name string) bool {
	for _, tests := range r.tests {
		if slices.Contains(tests, name) {
			return true
		}
	}
	return false
}

// linked reports whether the target of a link exists: a file, and the heading after #.
func (r *tree) linked(page, to string) bool {
	file, anchor, anchored := strings.Cut(to, "#")
	if file = path.Join(path.Dir(page), file); strings.HasPrefix(to, "#") {
		file = page
	}
	if !r.exists(file) {
		return false
	}
	if !anchored || path.Ext(file) != ".md" {
		return true
	}
	text, err := fs.ReadFile(r.files, file)
	if err != nil {
		return false
	}
	for line := range strings.Lines(fenced.ReplaceAllString(string(text), "")) {
		if heading.MatchString(line) && slug(line) == anchor {
			return true
		}
	}
	return false
}

var notInSlug = regexp.MustCompile(`[^\w -]`)

// slug returns the anchor of a heading.
func slug(heading string) string {
	text := strings.ToLower(strings.TrimSpace(strings.TrimLeft(heading, "#")))
	return strings.ReplaceAll(notInSlug.ReplaceAllString(text, ""), " ", "-")
}

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseCitations(t *testing.T) {
	tests := map[string]struct {
		comment string
		want    []string
		fails   string
	}{
		"one":               {comment: "The status (serving 6-1).", want: []string{"serving 6-1"}},
		"deep section":      {comment: "serving 7.0.1-4: deleting an owner", want: []string{"serving 7.0.1-4"}},
		"list":              {comment: "serving 7.2-3, 7.2-4, and 8-1 and 8-2", want: []string{"serving 7.2-3", "serving 7.2-4", "serving 8-1", "serving 8-2"}},
		"list in full":      {comment: "serving 7.2-3, serving 7.2-4", want: []string{"serving 7.2-3", "serving 7.2-4"}},
		"range":             {comment: "serving 7.1-9 to 7.1-11, 8-1", want: []string{"serving 7.1-9", "serving 7.1-10", "serving 7.1-11", "serving 8-1"}},
		"over two lines":    {comment: "as of serving\n7.1-1 to\n7.1-2", want: []string{"serving 7.1-1", "serving 7.1-2"}},
		"twice":             {comment: "serving 6-1; also\nserving 6-2", want: []string{"serving 6-1", "serving 6-2"}},
		"a section":         {comment: "serving 9.4.2"},
		"another word":      {comment: "observing 6-1, and serving 10 users"},
		"a long number":     {comment: "serving 6-1234"},
		"a number at large": {comment: "6-1"},
		"without section":   {comment: "serving 7.2-3, -5 and -7 to -8, 8-1", want: []string{"serving 7.2-3", "serving 7.2-5", "serving 7.2-7", "serving 7.2-8", "serving 8-1"}},
		"range of one":      {comment: "serving 7.1-1 to -2", want: []string{"serving 7.1-1", "serving 7.1-2"}},
		"eventing":          {comment: "eventing Trigger Lifecycle-1"},
		"backwards":         {comment: "serving 7.1-3 to 7.1-1", fails: "'serving 7.1-3 to 7.1-1' must be a range of one section, in its order"},
		"out of a section":  {comment: "serving 7.1-1 to 7.2-3", fails: "'serving 7.1-1 to 7.2-3' must be a range of one section, in its order"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, _, err := newGrammar("serving", numbered, nil).parse(test.comment)
			if test.fails != "" {
				if err == nil || err.Error() != test.fails {
					t.Errorf("error is %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseTitledCitations(t *testing.T) {
	g := newGrammar("eventing", titled, []string{"Trigger", "Trigger Lifecycle", "Derived (Reply) Events", "duckv1.Destination"})
	tests := map[string]struct {
		comment           string
		clauses, sections []string
		fails             string
	}{
		"one":               {comment: "Ready is False (eventing Trigger Lifecycle-2).", clauses: []string{"eventing Trigger Lifecycle-2"}},
		"list":              {comment: "eventing Trigger Lifecycle-1, -2 and Derived (Reply) Events-4", clauses: []string{"eventing Trigger Lifecycle-1", "eventing Trigger Lifecycle-2", "eventing Derived (Reply) Events-4"}},
		"list in full":      {comment: "eventing Trigger-1, and eventing duckv1.Destination-4", clauses: []string{"eventing Trigger-1", "eventing duckv1.Destination-4"}},
		"range":             {comment: "eventing Trigger-1 to -3", clauses: []string{"eventing Trigger-1", "eventing Trigger-2", "eventing Trigger-3"}},
		"and in a title":    {comment: "eventing Trigger-1 and Event Acknowledgement and Delivery Retry-2", clauses: []string{"eventing Trigger-1", "eventing Event Acknowledgement and Delivery Retry-2"}},
		"over two lines":    {comment: "eventing Trigger\nLifecycle-1", clauses: []string{"eventing Trigger Lifecycle-1"}},
		"unknown":           {comment: "eventing Triggers of Brokers-1", clauses: []string{"eventing Triggers of Brokers-1"}},
		"a section":         {comment: "eventing Trigger Lifecycle: class", sections: []string{"eventing Trigger Lifecycle"}},
		"sections":          {comment: "eventing Trigger, eventing Derived (Reply) Events", sections: []string{"eventing Trigger", "eventing Derived (Reply) Events"}},
		"both":              {comment: "eventing Trigger; eventing duckv1.Destination-1", clauses: []string{"eventing duckv1.Destination-1"}, sections: []string{"eventing Trigger"}},
		"an unknown title":  {comment: "eventing Foo, eventing Triggers"},
		"serving":           {comment: "serving 6-1"},
		"a number at large": {comment: "Trigger Lifecycle-1"},
		"out of a section":  {comment: "eventing Trigger-1 to Broker-3", fails: "'eventing Trigger-1 to Broker-3' must be a range of one section, in its order"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			clauses, sections, err := g.parse(test.comment)
			if test.fails != "" {
				if err == nil || err.Error() != test.fails {
					t.Errorf("error is %v, want %s", err, test.fails)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.clauses, clauses); diff != "" {
				t.Errorf("clauses (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(test.sections, sections); diff != "" {
				t.Errorf("sections (-want +got):\n%s", diff)
			}
		})
	}
}

func TestCitationsOfTests(t *testing.T) {
	const source = `// Package p is about serving 1-1.
package p

// TestA is about serving 6-1.
func TestA(t *testing.T) {
	_ = 1 // serving 6-2
	_ = "serving 6-3"
	// eventing Trigger-1, eventing Broker
}

// FuzzB is about serving 6-1, and once more serving 6-1.
func FuzzB(f *testing.F) {}

// helper is about serving 6-4.
func helper() {}

// TestMain is about serving 6-5.
func TestMain(m *testing.M) {}

// TestC is about serving 6-6.
func (s suite) TestC() {}
`
	grammars := []grammar{newGrammar("serving", numbered, nil), newGrammar("eventing", titled, []string{"Broker"})}
	got := newCitations()
	if err := got.add(grammars, "pkg/p", "a_test.go", source); err != nil {
		t.Fatal(err)
	}
	want := citations{
		clauses:  cited{"serving 6-1": {"pkg/p TestA", "pkg/p FuzzB"}, "serving 6-2": {"pkg/p TestA"}, "eventing Trigger-1": {"pkg/p TestA"}},
		sections: cited{"eventing Broker": {"pkg/p TestA"}},
	}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(citations{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	err := got.add(grammars, "pkg/p", "b_test.go", "package p\n\n// TestA: serving 6-2 to 6-1\nfunc TestA() {}\n")
	if err == nil || !strings.HasPrefix(err.Error(), "b_test.go:3:1: 'serving 6-2 to 6-1'") {
		t.Errorf("error is %v", err)
	}
}

func TestFaults(t *testing.T) {
	list := clauseList{name: "serving", clauses: []clause{
		{"serving 6-1", "MUST", "a"}, {"serving 6-2", "SHOULD", "b"}, {"serving 6-3", "MUST_NOT", "c"}, {"serving 10.2-1", "REQUIRED", "d"},
	}}
	titles := clauseList{name: "eventing", clauses: []clause{{"eventing Trigger-1", "MUST", "e"}}}
	all := cited{"serving 6-1": {"p TestA"}, "serving 6-3": {"p TestA"}, "serving 10.2-1": {"p TestA"}, "eventing Trigger-1": {"p TestA"}}
	with := func(id string) cited {
		c := cited{id: {"p TestB"}}
		for id, tests := range all {
			c[id] = tests
		}
		return c
	}
	without := func(ids ...string) cited {
		c := with(ids[0])
		for _, id := range ids {
			delete(c, id)
		}
		return c
	}
	tests := map[string]struct {
		cited      cited
		reasons    map[string]string
		deviations []string
		want       []string
	}{
		"all tested":                {cited: all},
		"an explained requirement":  {cited: without("serving 6-3", "eventing Trigger-1"), reasons: map[string]string{"serving 6-3": "r", "eventing Trigger-1": "r"}},
		"an untested requirement":   {cited: without("serving 6-3", "eventing Trigger-1"), want: []string{"clause serving 6-3 (MUST_NOT) is not tested: c", "clause eventing Trigger-1 (MUST) is not tested: e"}},
		"a deviation is not tested": {cited: without("serving 6-3"), deviations: []string{"serving 6-3"}, want: []string{"clause serving 6-3 (MUST_NOT) is not tested: c"}},
		"explained though tested":   {cited: all, reasons: map[string]string{"serving 6-1": "r"}, want: []string{"clause serving 6-1 is tested, remove it from uncovered.txt"}},
		"explained though unknown":  {cited: all, reasons: map[string]string{"serving 6-9": "r"}, want: []string{"uncovered.txt explains serving 6-9, which is in no list of clauses"}},
		"declared though unknown":   {cited: all, deviations: []string{"serving 6-9"}, want: []string{"docs/deviations.md declares serving 6-9, which is in no list of clauses"}},
		"cited though unknown":      {cited: with("serving 6-9"), want: []string{"there is no clause serving 6-9, which is cited by p TestB"}},
		"cited in another list":     {cited: with("eventing 6-1"), want: []string{"there is no clause eventing 6-1, which is cited by p TestB"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			specifications := []specification{{name: "serving", list: list}, {name: "eventing", list: titles, titles: true}}
			r := newReport(specifications, test.reasons, test.deviations, citations{clauses: test.cited})
			if diff := cmp.Diff(test.want, r.faults); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadData(t *testing.T) {
	for text, want := range map[string]string{
		"6-1 OUGHT x":           `clause serving 6-1: level "OUGHT" must be one of RFC 2119`,
		"6-1 MUST":              "clause serving 6-1 must have a summary and be listed once",
		"6-1 MUST x\n6-1 MAY x": "clause serving 6-1 must have a summary and be listed once",
		"Trigger Lifecycle-1 a": `clause serving Trigger Lifecycle-1: level "a" must be one of RFC 2119`,
		"Trigger MUST x":        `"Trigger MUST x" must begin with a clause`,
	} {
		if _, err := parseClauses("serving")(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q: error is %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{"serving 6-1", "serving 6-1 r\nserving 6-1 r"} {
		if _, err := parseReasons(strings.NewReader(text)); err == nil || err.Error() != "clause serving 6-1 must have a reason and be listed once" {
			t.Errorf("%q: error is %v", text, err)
		}
	}
}

// repository returns a directory with files of a small repository.
func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"test/conformance/serving-clauses.txt":     "# comment\n6-1 MUST_NOT first\n\n6-2 MAY second\n6-3 MUST third | or more\n6-4 MUST fourth\n",
		"test/conformance/eventing-clauses.txt":    "empty DeliverySpec\nTrigger Lifecycle-1 MUST fifth\nTrigger Lifecycle-2 MUST sixth\n",
		"test/conformance/conventions-clauses.txt": "PATCH-1 SHOULD seventh\n",
		"test/conformance/uncovered.txt":           "serving 6-3 because\neventing Trigger Lifecycle-2 for a reason\n",
		"docs/deviations.md":                       "serving 6-3 is no row.\n\n| a (serving 6-1 to 6-2) | b | c |\n",
		"pkg/p/a_test.go":                          "package p\n\n// TestA: serving 6-1, eventing Trigger Lifecycle-1 and eventing DeliverySpec.\nfunc TestA() {}\n",
		"pkg/p/b_test.go":                          "package p\n\n// TestB: serving 6-1\nfunc TestB() {}\n\n// TestC: serving 6-1, conventions PATCH-1\nfunc TestC() {}\n",
		"pkg/generated/a_test.go":                  "package p\n\n// TestA: serving 6-4.\nfunc TestA() {}\n",
		"pkg/p/a.go":                               "package p\n\n// TestA: serving 6-4.\nfunc TestA() {}\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestReport(t *testing.T) {
	root := repository(t)
	r, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"clause serving 6-4 (MUST) is not tested: fourth"}, r.faults); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	var out strings.Builder
	if err := r.print(&out); err != nil {
		t.Fatal(err)
	}
	want := `serving 6-1 MUST NOT    first
                        pkg/p TestA
                        pkg/p TestB
                        pkg/p TestC
serving 6-2 MAY         second
serving 6-3 MUST        third | or more
serving 6-4 MUST        fourth

1 of 3 clauses of serving that bind are tested.

Not tested:
serving 6-3 MUST        because
serving 6-4 MUST        NO REASON GIVEN

eventing Trigger Lifecycle-1 MUST        fifth
                                         pkg/p TestA
eventing Trigger Lifecycle-2 MUST        sixth

1 of 2 clauses of eventing that bind are tested.

Not tested:
eventing Trigger Lifecycle-2 MUST        for a reason

Tests that name a section:
DeliverySpec
                                         pkg/p TestA

conventions PATCH-1 SHOULD      seventh
                                pkg/p TestC

0 of 0 clauses of conventions that bind are tested.

Tests that name a section:

`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := read(filepath.Join(root, "none")); !os.IsNotExist(err) {
		t.Errorf("without data: %v", err)
	}
}

func TestPage(t *testing.T) {
	root := repository(t)
	r, err := read(root)
	if err != nil {
		t.Fatal(err)
	}
	want := `
## Knative Serving API 1.0.2

4 clauses. 1 of the 3 that bind are tested. Tests cite them as ` + "`serving 6-1`" + `.

| clause | level | about | test | deviation |
| --- | --- | --- | --- | --- |
| 6-1 | MUST NOT | first | ` + "`pkg/p TestA`, `pkg/p TestB`" + ` | [declared](deviations.md) |
| 6-2 | MAY | second | none | [declared](deviations.md) |
| 6-3 | MUST | third \| or more | none: because |  |
| 6-4 | MUST | fourth | none |  |

## Knative Eventing

2 clauses. 1 of the 2 that bind are tested. Tests cite them as ` + "`eventing Trigger Lifecycle-1`" + `.

| clause | level | about | test | deviation |
| --- | --- | --- | --- | --- |
| Trigger Lifecycle-1 | MUST | fifth | ` + "`pkg/p TestA`" + ` |  |
| Trigger Lifecycle-2 | MUST | sixth | none: for a reason |  |

## Kubernetes API conventions

1 clauses. 0 of the 0 that bind are tested. Tests cite them as ` + "`conventions PATCH-1`" + `.

| clause | level | about | test | deviation |
| --- | --- | --- | --- | --- |
| PATCH-1 | SHOULD | seventh | ` + "`pkg/p TestC`" + ` |  |
`
	if diff := cmp.Diff(pageHead+want, string(r.page())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	file := filepath.Join(root, "docs", "conformance.md")
	if err := verifyPage(file, r); !os.IsNotExist(err) {
		t.Errorf("without a page: %v", err)
	}
	for content, current := range map[string]bool{string(r.page()): true, string(r.page()) + "more": false} {
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := verifyPage(file, r); (err == nil) != current {
			t.Errorf("the page is up to date: %t, error is %v", current, err)
		}
	}
}

// The lists in the repository are valid and consistent.
func TestClausesOfTheRepository(t *testing.T) {
	for name, want := range map[string]int{"serving": 256, "eventing": 217, "conventions": 114} {
		list, err := parseFile("../../test/conformance/"+name+"-clauses.txt", parseClauses(name))
		if err != nil {
			t.Fatal(err)
		}
		if len(list.clauses) != want {
			t.Errorf("there are %d clauses of %s, want %d", len(list.clauses), name, want)
		}
		next := map[string]int{}
		for _, c := range list.clauses {
			section := list.sectionOf(c)
			if next[section]++; c.id != fmt.Sprintf("%s %s-%d", name, section, next[section]) {
				t.Errorf("clause %s does not follow the previous one", c.id)
			}
		}
	}
}

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
		"one":               {comment: "The status (serving 6-1).", want: []string{"6-1"}},
		"deep section":      {comment: "serving 7.0.1-4: deleting an owner", want: []string{"7.0.1-4"}},
		"list":              {comment: "serving 7.2-3, 7.2-4, and 8-1 and 8-2", want: []string{"7.2-3", "7.2-4", "8-1", "8-2"}},
		"list in full":      {comment: "serving 7.2-3, serving 7.2-4", want: []string{"7.2-3", "7.2-4"}},
		"range":             {comment: "serving 7.1-9 to 7.1-11, 8-1", want: []string{"7.1-9", "7.1-10", "7.1-11", "8-1"}},
		"over two lines":    {comment: "as of serving\n7.1-1 to\n7.1-2", want: []string{"7.1-1", "7.1-2"}},
		"twice":             {comment: "serving 6-1; also\nserving 6-2", want: []string{"6-1", "6-2"}},
		"a section":         {comment: "serving 9.4.2"},
		"another word":      {comment: "observing 6-1, and serving 10 users"},
		"a long number":     {comment: "serving 6-1234"},
		"a number at large": {comment: "6-1"},
		"without section":   {comment: "serving 7.2-3, -5 and -7 to -8, 8-1", want: []string{"7.2-3", "7.2-5", "7.2-7", "7.2-8", "8-1"}},
		"range of one":      {comment: "serving 7.1-1 to -2", want: []string{"7.1-1", "7.1-2"}},
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
		"one":               {comment: "Ready is False (eventing Trigger Lifecycle-2).", clauses: []string{"Trigger Lifecycle-2"}},
		"list":              {comment: "eventing Trigger Lifecycle-1, -2 and Derived (Reply) Events-4", clauses: []string{"Trigger Lifecycle-1", "Trigger Lifecycle-2", "Derived (Reply) Events-4"}},
		"list in full":      {comment: "eventing Trigger-1, and eventing duckv1.Destination-4", clauses: []string{"Trigger-1", "duckv1.Destination-4"}},
		"range":             {comment: "eventing Trigger-1 to -3", clauses: []string{"Trigger-1", "Trigger-2", "Trigger-3"}},
		"and in a title":    {comment: "eventing Trigger-1 and Event Acknowledgement and Delivery Retry-2", clauses: []string{"Trigger-1", "Event Acknowledgement and Delivery Retry-2"}},
		"over two lines":    {comment: "eventing Trigger\nLifecycle-1", clauses: []string{"Trigger Lifecycle-1"}},
		"unknown":           {comment: "eventing Triggers of Brokers-1", clauses: []string{"Triggers of Brokers-1"}},
		"a section":         {comment: "eventing Trigger Lifecycle: class", sections: []string{"Trigger Lifecycle"}},
		"sections":          {comment: "eventing Trigger, eventing Derived (Reply) Events", sections: []string{"Trigger", "Derived (Reply) Events"}},
		"both":              {comment: "eventing Trigger; eventing duckv1.Destination-1", clauses: []string{"duckv1.Destination-1"}, sections: []string{"Trigger"}},
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
		clauses:  cited{"6-1": {"pkg/p TestA", "pkg/p FuzzB"}, "6-2": {"pkg/p TestA"}, "Trigger-1": {"pkg/p TestA"}},
		sections: cited{"Broker": {"pkg/p TestA"}},
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
	list := clauseList{beyond: []string{"5", "10"}, clauses: []clause{
		{"6-1", "MUST", "a"}, {"6-2", "SHOULD", "b"}, {"6-3", "MUST_NOT", "c"}, {"10.2-1", "REQUIRED", "d"},
	}}
	titles := clauseList{clauses: []clause{{"Trigger-1", "MUST", "e"}}}
	all := cited{"6-1": {"p TestA"}, "6-3": {"p TestA"}, "10.2-1": {"p TestA"}, "Trigger-1": {"p TestA"}}
	with := func(id string) cited {
		c := cited{id: {"p TestB"}}
		for id, tests := range all {
			c[id] = tests
		}
		return c
	}
	tests := map[string]struct {
		cited   cited
		reasons map[string]string
		want    []string
	}{
		"all tested":                       {cited: all},
		"what binds is explained":          {cited: cited{"6-1": {"p TestA"}}, reasons: map[string]string{"6-3": "r", "10.2-1": "r", "Trigger-1": "r"}},
		"one that binds is not tested":     {cited: cited{"6-1": {"p TestA"}, "10.2-1": {"p TestA"}}, want: []string{"clause 6-3 (MUST_NOT) is not tested: c", "clause Trigger-1 (MUST) is not tested: e"}},
		"explained though tested":          {cited: all, reasons: map[string]string{"6-1": "r"}, want: []string{"clause 6-1 is tested, remove it from uncovered.txt"}},
		"explained though unknown":         {cited: all, reasons: map[string]string{"6-9": "r"}, want: []string{"uncovered.txt explains 6-9, which is in no list of clauses"}},
		"cited though unknown":             {cited: with("6-9"), want: []string{"there is no clause 6-9, which is cited by p TestB"}},
		"cited in an unknown section":      {cited: with("6.1-1"), want: []string{"there is no clause 6.1-1, which is cited by p TestB"}},
		"cited though untitled":            {cited: with("Triggers-1"), want: []string{"there is no clause Triggers-1, which is cited by p TestB"}},
		"cited beyond the list":            {cited: with("10.20-4")},
		"unknown in a section of the list": {cited: with("10.2-9"), want: []string{"there is no clause 10.2-9, which is cited by p TestB"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, newReport([]specification{{name: "serving", list: list}, {name: "eventing", list: titles}}, test.reasons, citations{clauses: test.cited}).faults); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
		})
	}
}

func TestBadData(t *testing.T) {
	for text, want := range map[string]string{
		"6-1 OUGHT x":           `clause 6-1: level "OUGHT" must be one of RFC 2119`,
		"6-1 MUST":              "clause 6-1 must have a summary and be listed once",
		"6-1 MUST x\n6-1 MAY x": "clause 6-1 must have a summary and be listed once",
		"Trigger Lifecycle-1 a": `clause Trigger Lifecycle-1: level "a" must be one of RFC 2119`,
		"Trigger MUST x":        `"Trigger MUST x" must begin with a clause`,
	} {
		if _, err := parseClauses(strings.NewReader(text)); err == nil || err.Error() != want {
			t.Errorf("%q: error is %v, want %s", text, err, want)
		}
	}
	for _, text := range []string{"6-1", "6-1 r\n6-1 r"} {
		if _, err := parseReasons(strings.NewReader(text)); err == nil || err.Error() != "clause 6-1 must have a reason and be listed once" {
			t.Errorf("%q: error is %v", text, err)
		}
	}
}

func TestReport(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{
		"test/conformance/serving-clauses.txt":  "# comment\nbeyond 5, 10\n6-1 MUST_NOT first\n\n6-2 MAY second\n6-3 MUST third\n6-4 MUST fourth\n",
		"test/conformance/eventing-clauses.txt": "beyond DeliverySpec\nTrigger Lifecycle-1 MUST fifth\nTrigger Lifecycle-2 MUST sixth\n",
		"test/conformance/uncovered.txt":        "6-3 because\nTrigger Lifecycle-2 for a reason\n",
		"pkg/p/a_test.go":                       "package p\n\n// TestA: serving 6-1, 5.1-2, eventing Trigger Lifecycle-1 and eventing DeliverySpec.\nfunc TestA() {}\n",
		"pkg/generated/a_test.go":               "package p\n\n// TestA: serving 6-4.\nfunc TestA() {}\n",
		"pkg/p/a.go":                            "package p\n\n// TestA: serving 6-4.\nfunc TestA() {}\n",
	} {
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var out strings.Builder
	faults, err := run(root, &out)
	if err != nil || faults != 1 {
		t.Fatalf("%d faults, %v", faults, err)
	}
	want := `6-1       MUST NOT    first
                      pkg/p TestA
6-2       MAY         second
6-3       MUST        third
6-4       MUST        fourth

1 of 3 clauses of serving that bind are tested.

Not tested:
6-3       MUST        because
6-4       MUST        NO REASON GIVEN

Trigger Lifecycle-1 MUST        fifth
                                pkg/p TestA
Trigger Lifecycle-2 MUST        sixth

1 of 2 clauses of eventing that bind are tested.

Not tested:
Trigger Lifecycle-2 MUST        for a reason

Tests that name a section:
DeliverySpec
                                pkg/p TestA

Faults:
clause 6-4 (MUST) is not tested: fourth
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := run(filepath.Join(root, "none"), &out); !os.IsNotExist(err) {
		t.Errorf("without data: %v", err)
	}
}

// The lists in the repository are valid and consistent.
func TestClausesOfTheRepository(t *testing.T) {
	for name, want := range map[string]int{"serving": 122, "eventing": 131} {
		list, err := parseFile("../../test/conformance/"+name+"-clauses.txt", parseClauses)
		if err != nil {
			t.Fatal(err)
		}
		if len(list.clauses) != want {
			t.Errorf("there are %d clauses of %s, want %d", len(list.clauses), name, want)
		}
		next := map[string]int{}
		for _, c := range list.clauses {
			section := sectionOf(c.id)
			if next[section]++; name == "eventing" && c.id != fmt.Sprintf("%s-%d", section, next[section]) {
				t.Errorf("clause %s does not follow the one before", c.id)
			}
		}
	}
}

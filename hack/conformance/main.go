// Command conformance lists the clauses of the specifications of Knative Serving, Knative Eventing and of the conventions
// of the Kubernetes API with the tests that cite them, writes the list to docs/conformance.md, and fails if a required
// clause is neither tested nor explained. With -verify it changes nothing and fails if that page is not up to date.
//
// A test cites clauses in its doc comment, or in a comment in its body:
//
//	citation = ( "serving " | "eventing " | "conventions " ) item { separator item }
//	item     = clause [ " to " clause ]
//	separator = ", " | " and " | ", and ", each optionally followed by the name of the specification
//	clause   = [ section ] "-" number, such as 7.0.1-4 or Trigger Lifecycle-3
//
// A clause without section belongs to the previous section. A range stays within one section. "eventing Trigger
// Lifecycle" alone cites a section: such tests are listed, but cover no clause.
//
// The rows of docs/deviations.md cite clauses in the same way: these are listed with the deviation.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
)

func main() {
	log.SetFlags(0)
	root := flag.String("root", ".", "The repository's root directory.")
	verify := flag.Bool("verify", false, "Write nothing, and fail if docs/conformance.md is not up to date.")
	flag.Parse()
	r, err := read(*root)
	if err != nil {
		log.Fatal(err)
	}
	page := filepath.Join(*root, "docs", "conformance.md")
	if *verify {
		err = verifyPage(page, r)
	} else if err = r.print(os.Stdout); err == nil {
		err = os.WriteFile(page, r.page(), 0o644)
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, fault := range r.faults {
		log.Print(fault)
	}
	if len(r.faults) > 0 {
		log.Fatalf("%d errors, see above", len(r.faults))
	}
}

// verifyPage fails if the file differs from the page of a report.
func verifyPage(file string, r *report) error {
	have, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !bytes.Equal(have, r.page()) {
		return fmt.Errorf("%s is not up to date: run make conformance", file)
	}
	return nil
}

// read returns the report of a repository.
func read(root string) (*report, error) {
	data := filepath.Join(root, "test", "conformance")
	specifications := []specification{
		{name: "serving", title: "Knative Serving API 1.0.2"},
		{name: "eventing", title: "Knative Eventing", titles: true},
		{name: "conventions", title: "Kubernetes API conventions", titles: true},
	}
	var grammars []grammar
	for i := range specifications {
		s := &specifications[i]
		var err error
		if s.list, err = parseFile(filepath.Join(data, s.name+"-clauses.txt"), parseClauses(s.name)); err != nil {
			return nil, err
		}
		grammars = append(grammars, s.grammar())
	}
	reasons, err := parseFile(filepath.Join(data, "uncovered.txt"), parseReasons)
	if err != nil {
		return nil, err
	}
	deviations, err := parseFile(filepath.Join(root, "docs", "deviations.md"), parseDeviations(grammars))
	if err != nil {
		return nil, err
	}
	cited, err := findCitations(root, grammars)
	if err != nil {
		return nil, err
	}
	return newReport(specifications, reasons, deviations, cited), nil
}

func parseFile[T any](path string, parse func(io.Reader) (T, error)) (T, error) {
	file, err := os.Open(path)
	if err != nil {
		var none T
		return none, err
	}
	defer file.Close()
	parsed, err := parse(file)
	if err != nil {
		return parsed, fmt.Errorf("%s: %w", path, err)
	}
	return parsed, nil
}

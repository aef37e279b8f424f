// Command conformance prints the clauses of the specifications of Knative Serving and Eventing with the tests that
// cite them, and fails if a required clause is neither tested nor explained.
//
// A test cites clauses in its doc comment, or in a comment in its body:
//
//	citation = ( "serving " | "eventing " ) item { separator item }
//	item     = clause [ " to " clause ]
//	separator = ", " | " and " | ", and ", each optionally followed by the name of the specification
//	clause   = [ section ] "-" number, such as 7.0.1-4 or Trigger Lifecycle-3
//
// A clause without section belongs to the previous section. A range stays within one section. "eventing Trigger
// Lifecycle" alone cites a section: such tests are listed, but cover no clause.
package main

import (
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
	flag.Parse()
	faults, err := run(*root, os.Stdout)
	if err != nil {
		log.Fatal(err)
	}
	if faults > 0 {
		log.Fatalf("%d errors, see above", faults)
	}
}

// run prints the report of a repository and returns the number of errors.
func run(root string, out io.Writer) (faults int, err error) {
	data := filepath.Join(root, "test", "conformance")
	specifications := []specification{{name: "serving"}, {name: "eventing", titles: true}}
	var grammars []grammar
	for i := range specifications {
		s := &specifications[i]
		if s.list, err = parseFile(filepath.Join(data, s.name+"-clauses.txt"), parseClauses); err != nil {
			return 0, err
		}
		grammars = append(grammars, s.grammar())
	}
	reasons, err := parseFile(filepath.Join(data, "uncovered.txt"), parseReasons)
	if err != nil {
		return 0, err
	}
	cited, err := findCitations(root, grammars)
	if err != nil {
		return 0, err
	}
	r := newReport(specifications, reasons, cited)
	return len(r.faults), r.print(out)
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

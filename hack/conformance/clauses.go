package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// clause is one statement of a specification. Its id contains the name of the specification: "serving 6-1".
type clause struct {
	id, level, summary string
}

// levels are the keywords of RFC 2119, and whether they are requirements.
var levels = map[string]bool{
	"MUST": true, "MUST_NOT": true, "REQUIRED": true, "SHALL": true, "SHALL_NOT": true,
	"SHOULD": false, "SHOULD_NOT": false, "RECOMMENDED": false, "NOT_RECOMMENDED": false, "MAY": false, "OPTIONAL": false,
}

func (c clause) binds() bool { return levels[c.level] }

// clauseList contains the clauses of a specification, in order.
type clauseList struct {
	name    string
	clauses []clause
	// empty are sections without clauses, which may be cited.
	empty []string
}

func (l clauseList) has(id string) bool {
	return slices.ContainsFunc(l.clauses, func(c clause) bool { return c.id == id })
}

// sections returns all sections without duplicates.
func (l clauseList) sections() []string {
	sections := slices.Clone(l.empty)
	for _, c := range l.clauses {
		sections = append(sections, l.sectionOf(c))
	}
	slices.Sort(sections)
	return slices.Compact(sections)
}

// sectionOf returns the section of a clause: the part before its number.
func (l clauseList) sectionOf(c clause) string {
	return c.id[len(l.name)+1 : strings.LastIndex(c.id, "-")]
}

// line is a line of a file: a clause, such as 7.0.1-4 or Trigger Lifecycle-2, and text about it.
var line = regexp.MustCompile(`^(\S.*?-\d+)(?: +(.*))?$`)

// parseClauses parses the clauses of the named specification: lines with a clause, its level and its summary. A line that
// begins with "empty" lists sections without clauses.
func parseClauses(name string) func(io.Reader) (clauseList, error) {
	return func(r io.Reader) (clauseList, error) {
		list := clauseList{name: name}
		err := eachLine(r, func(text string) error {
			if sections, ok := strings.CutPrefix(text, "empty "); ok {
				list.empty = strings.Split(sections, ", ")
				return nil
			}
			number, rest, err := parseLine(text)
			if err != nil {
				return err
			}
			id := name + " " + number
			level, summary, _ := strings.Cut(rest, " ")
			if _, ok := levels[level]; !ok {
				return fmt.Errorf("clause %s: level %q must be one of RFC 2119", id, level)
			}
			if summary == "" || list.has(id) {
				return fmt.Errorf("clause %s must have a summary and be listed once", id)
			}
			list.clauses = append(list.clauses, clause{id, level, summary})
			return nil
		})
		return list, err
	}
}

// parseReasons parses lines with a clause, after the name of its specification, and the reason why no test cites it.
func parseReasons(r io.Reader) (map[string]string, error) {
	reasons := map[string]string{}
	err := eachLine(r, func(text string) error {
		id, reason, err := parseLine(text)
		if err != nil {
			return err
		}
		if _, exists := reasons[id]; exists || reason == "" {
			return fmt.Errorf("clause %s must have a reason and be listed once", id)
		}
		reasons[id] = reason
		return nil
	})
	return reasons, err
}

// parseDeviations returns a parser of a page whose tables declare deviations: the clauses that their rows cite.
func parseDeviations(grammars []grammar) func(io.Reader) ([]string, error) {
	return func(r io.Reader) ([]string, error) {
		var declared []string
		err := eachLine(r, func(text string) error {
			if !strings.HasPrefix(text, "|") {
				return nil
			}
			for _, g := range grammars {
				clauses, _, err := g.parse(text)
				if err != nil {
					return err
				}
				declared = append(declared, clauses...)
			}
			return nil
		})
		slices.Sort(declared)
		return slices.Compact(declared), err
	}
}

func parseLine(text string) (id, rest string, err error) {
	parts := line.FindStringSubmatch(text)
	if parts == nil {
		return "", "", fmt.Errorf("%q must begin with a clause", text)
	}
	return parts[1], parts[2], nil
}

// eachLine calls parse with each line that is neither empty nor a comment.
func eachLine(r io.Reader, parse func(text string) error) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		if err := parse(text); err != nil {
			return err
		}
	}
	return lines.Err()
}

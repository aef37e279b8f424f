package main

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
)

// clause is one numbered sentence of the specification.
type clause struct {
	id, level, summary string
}

// levels are the words of RFC 2119, and whether what they say is a duty.
var levels = map[string]bool{
	"MUST": true, "MUST_NOT": true, "REQUIRED": true, "SHALL": true, "SHALL_NOT": true,
	"SHOULD": false, "SHOULD_NOT": false, "RECOMMENDED": false, "NOT_RECOMMENDED": false, "MAY": false, "OPTIONAL": false,
}

func (c clause) binds() bool { return levels[c.level] }

// clauseList is what the tests are held against, in the order of the specification.
type clauseList struct {
	clauses []clause
	// beyond are the sections whose clauses may be cited though they are not listed.
	beyond []string
}

func (l clauseList) has(id string) bool {
	return slices.ContainsFunc(l.clauses, func(c clause) bool { return c.id == id })
}

// knows tells whether a clause may be cited: it is listed, or is of a section that is beyond the list.
func (l clauseList) knows(id string) bool {
	if l.has(id) {
		return true
	}
	section := sectionOf(id)
	if slices.ContainsFunc(l.clauses, func(c clause) bool { return sectionOf(c.id) == section }) {
		return false
	}
	return slices.ContainsFunc(l.beyond, func(s string) bool { return section == s || strings.HasPrefix(section, s+".") })
}

func sectionOf(id string) string {
	section, _, _ := strings.Cut(id, "-")
	return section
}

// parseClauses reads lines of number, level and summary, and one that begins with beyond.
func parseClauses(r io.Reader) (clauseList, error) {
	var list clauseList
	err := eachLine(r, func(first, rest string) error {
		if first == "beyond" {
			list.beyond = strings.Fields(rest)
			return nil
		}
		level, summary, _ := strings.Cut(rest, " ")
		if _, ok := levels[level]; !ok {
			return fmt.Errorf("clause %s: level %q must be one of RFC 2119", first, level)
		}
		if summary == "" || list.has(first) {
			return fmt.Errorf("clause %s must have a summary and be listed once", first)
		}
		list.clauses = append(list.clauses, clause{first, level, summary})
		return nil
	})
	return list, err
}

// parseReasons reads lines of the number of a clause and why no test cites it.
func parseReasons(r io.Reader) (map[string]string, error) {
	reasons := map[string]string{}
	err := eachLine(r, func(id, reason string) error {
		if _, again := reasons[id]; again || reason == "" {
			return fmt.Errorf("clause %s must have a reason and be listed once", id)
		}
		reasons[id] = reason
		return nil
	})
	return reasons, err
}

// eachLine calls parse with the first word and the rest of each line that is neither empty nor a comment.
func eachLine(r io.Reader, parse func(first, rest string) error) error {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		first, rest, _ := strings.Cut(line, " ")
		if err := parse(first, strings.TrimSpace(rest)); err != nil {
			return err
		}
	}
	return lines.Err()
}

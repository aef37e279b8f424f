package main

import (
	"bufio"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// clause is one sentence of a specification.
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
	clauses []clause
	// beyond are sections that may be cited although their clauses are not listed.
	beyond []string
}

func (l clauseList) has(id string) bool {
	return slices.ContainsFunc(l.clauses, func(c clause) bool { return c.id == id })
}

// knows reports whether a clause may be cited: it is listed, or its section is in beyond.
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

// sections returns all sections without duplicates.
func (l clauseList) sections() []string {
	sections := slices.Clone(l.beyond)
	for _, c := range l.clauses {
		sections = append(sections, sectionOf(c.id))
	}
	slices.Sort(sections)
	return slices.Compact(sections)
}

// sectionOf returns the section of a clause: the part before its number.
func sectionOf(id string) string { return id[:strings.LastIndex(id, "-")] }

// line is a line of a file: a clause, such as 7.0.1-4 or Trigger Lifecycle-2, and text about it.
var line = regexp.MustCompile(`^(\S.*?-\d+)(?: +(.*))?$`)

// parseClauses parses lines with a clause, its level and its summary, and a line that begins with beyond and lists sections.
func parseClauses(r io.Reader) (clauseList, error) {
	var list clauseList
	err := eachLine(r, func(text string) error {
		if sections, ok := strings.CutPrefix(text, "beyond "); ok {
			list.beyond = strings.Split(sections, ", ")
			return nil
		}
		id, rest, err := parseLine(text)
		if err != nil {
			return err
		}
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

// parseReasons parses lines with a clause and the reason why no test cites it.
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

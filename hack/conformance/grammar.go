package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// grammar is the syntax of citations of one specification.
type grammar struct {
	name string
	// citation matches whole lists, and item their elements: section and number, and the end of a range.
	citation, item *regexp.Regexp
	// section matches headings, including the beginning of a number. Nil if headings may not be cited alone.
	section *regexp.Regexp
}

const (
	// numbered are sections such as 7.0.1, and titled are sections such as Derived (Reply) Events or duckv1.Destination.
	numbered = `\d+(?:\.\d+)*`
	titled   = `(?:duckv1\.)?[A-Z][A-Za-z]*(?: [A-Za-z()]+)*`
	number   = `-\d{1,3}\b`
)

// newGrammar returns the grammar of the specification that comments call name. Headings are the sections that may be cited
// alone.
func newGrammar(name, section string, headings []string) grammar {
	item := `(` + section + `)?(` + number + `)(?: to (` + section + `)?(` + number + `))?`
	g := grammar{
		name:     name,
		citation: regexp.MustCompile(`\b` + name + ` ((?:` + section + `)` + number + `(?:(?: to|, and|,| and) (?:` + name + ` )?(?:` + section + `)?` + number + `)*)`),
		item:     regexp.MustCompile(item),
	}
	if len(headings) > 0 {
		var quoted []string
		// The longest first, because Channel is a prefix of Channel Lifecycle.
		for _, heading := range slices.SortedFunc(slices.Values(headings), func(a, b string) int { return cmp.Compare(len(b), len(a)) }) {
			quoted = append(quoted, regexp.QuoteMeta(heading))
		}
		g.section = regexp.MustCompile(`\b` + name + ` (` + strings.Join(quoted, "|") + `)\b(-\d)?`)
	}
	return g
}

// parse returns the clauses that a text cites, with ranges expanded, and the sections that it cites alone, each after the
// name of the specification. It fails for a range that spans sections or is reversed.
func (g grammar) parse(text string) (clauses, sections []string, err error) {
	text = strings.Join(strings.Fields(text), " ")
	for _, list := range g.citation.FindAllStringSubmatch(text, -1) {
		section := ""
		for _, match := range g.item.FindAllStringSubmatch(strings.ReplaceAll(list[1], g.name+" ", ""), -1) {
			section = cmp.Or(match[1], section)
			from, to := numberOf(match[2]), numberOf(match[4])
			if match[4] == "" {
				to = from
			} else if cmp.Or(match[3], section) != section || from >= to {
				return nil, nil, fmt.Errorf("'%s %s' must be a range of one section, in its order", g.name, match[0])
			}
			for n := from; n <= to; n++ {
				clauses = append(clauses, g.name+" "+section+"-"+strconv.Itoa(n))
			}
		}
	}
	if g.section == nil {
		return clauses, nil, nil
	}
	for _, match := range g.section.FindAllStringSubmatch(text, -1) {
		if match[2] == "" {
			sections = append(sections, g.name+" "+match[1])
		}
	}
	return clauses, sections, nil
}

// numberOf returns the number at the end of a clause, such as -12.
func numberOf(text string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(text, "-")) // three digits at most
	return n
}

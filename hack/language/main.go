// Command language checks the prose and the names of the tree against a list of patterns, and reports each match with the
// wording to use instead.
//
// Usage: go run ./hack/language [PATH...]   PATH is a directory or file (default: the list in hack/language/clean.txt)
package main

import (
	"bufio"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

const (
	patternsFile = "hack/language/patterns.txt"
	cleanFile    = "hack/language/clean.txt"
)

func main() {
	findings, err := run(os.Args[1:])
	for _, finding := range findings {
		fmt.Println(finding)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	if err != nil || len(findings) > 0 {
		os.Exit(1)
	}
}

// run checks paths, by default the paths in clean.txt.
func run(paths []string) ([]string, error) {
	patterns, err := readPatterns(patternsFile)
	if err != nil {
		return nil, err
	}
	if len(paths) == 0 {
		if paths, err = readLines(cleanFile); err != nil {
			return nil, err
		}
	}
	var findings []string
	for _, path := range paths {
		found, err := patterns.checkPath(path)
		if err != nil {
			return nil, err
		}
		findings = append(findings, found...)
	}
	return findings, nil
}

// patterns are the rules of patterns.txt.
type patterns struct {
	// prose applies to comments, string literals and text files.
	prose []rule
	// names applies to each word of an identifier, a package name or a file name.
	names []rule
}

// rule maps a pattern to the wording that replaces it.
type rule struct {
	pattern *regexp.Regexp
	instead string
}

// readPatterns parses a file in which each line is a regular expression, a tab and the replacement. A line [prose] or
// [names] begins a section.
func readPatterns(path string) (*patterns, error) {
	lines, err := readLines(path)
	if err != nil {
		return nil, err
	}
	result := &patterns{}
	var section *[]rule
	format := ""
	for _, line := range lines {
		switch line {
		case "[prose]":
			section, format = &result.prose, `(?i)(?:%s)`
			continue
		case "[names]":
			section, format = &result.names, `^(?:%s)$`
			continue
		}
		expression, instead, found := strings.Cut(line, "\t")
		instead = strings.TrimSpace(instead)
		if !found || instead == "" {
			return nil, fmt.Errorf("parse %s: %q must be a pattern, a tab and its replacement", path, line)
		}
		if section == nil {
			return nil, fmt.Errorf("parse %s: %q must be in a section", path, line)
		}
		pattern, err := regexp.Compile(fmt.Sprintf(format, expression))
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", path, err)
		}
		*section = append(*section, rule{pattern, instead})
	}
	return result, nil
}

// readLines returns the lines of a file without empty lines and comments.
func readLines(path string) ([]string, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var lines []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		if line := strings.TrimSpace(scanner.Text()); line != "" && !strings.HasPrefix(line, "#") {
			lines = append(lines, line)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	return lines, nil
}

// checkPath checks a file, or all files below a directory except hidden ones and testdata.
func (p *patterns) checkPath(root string) ([]string, error) {
	var findings []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() {
			if path != root && (strings.HasPrefix(name, ".") || name == "testdata") {
				return fs.SkipDir
			}
			return nil
		}
		var read func(path string, source []byte) (*text, error)
		switch extension := filepath.Ext(name); {
		case extension == ".go":
			read = readGo
		case extension == ".md":
			read = readMarkdown
		case slices.Contains([]string{".sh", ".yaml", ".yml", ".mod"}, extension), name == "Makefile":
			read = readHash
		default:
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		text, err := read(path, source)
		if err != nil {
			return err
		}
		for _, finding := range p.check(text) {
			findings = append(findings, path+":"+finding)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("check %s: %w", root, err)
	}
	return findings, nil
}

// check returns a message for each match, beginning with its line.
func (p *patterns) check(text *text) []string {
	type finding struct {
		line    int
		message string
	}
	var findings []finding
	for _, passage := range text.prose {
		joined := passage.join()
		for _, rule := range p.prose {
			for _, match := range rule.pattern.FindAllStringIndex(joined, -1) {
				findings = append(findings, finding{passage.line(match[0]), fmt.Sprintf("%q: %s", strings.TrimSpace(joined[match[0]:match[1]]), rule.instead)})
			}
		}
	}
	for _, name := range text.names {
		for _, word := range words(name.text) {
			for _, rule := range p.names {
				if rule.pattern.MatchString(word) {
					findings = append(findings, finding{name.line, fmt.Sprintf("name %s has the word %q: %s", name.text, word, rule.instead)})
				}
			}
		}
	}
	slices.SortStableFunc(findings, func(a, b finding) int { return a.line - b.line })
	var messages []string
	for _, f := range findings {
		messages = append(messages, fmt.Sprintf("%d: %s", f.line, f.message))
	}
	return messages
}

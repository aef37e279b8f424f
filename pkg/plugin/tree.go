package plugin

import (
	"fmt"
	"io"
	"strings"
	"unicode"
)

// node is a line of a tree, with the lines below it.
type node struct {
	text     string
	children []*node
}

// add adds a child and returns it.
func (n *node) add(format string, args ...any) *node {
	child := &node{text: fmt.Sprintf(format, args...)}
	n.children = append(n.children, child)
	return child
}

// write prints the tree with lines between parents and children.
func (n *node) write(to io.Writer) error {
	return n.writeIndented(to, "", "")
}

func (n *node) writeIndented(to io.Writer, first, rest string) error {
	if _, err := fmt.Fprintln(to, first+visible(n.text)); err != nil {
		return err
	}
	for i, child := range n.children {
		branch, indent := "├─ ", "│  "
		if i == len(n.children)-1 {
			branch, indent = "└─ ", "   "
		}
		if err := child.writeIndented(to, rest+branch, rest+indent); err != nil {
			return err
		}
	}
	return nil
}

// visible returns a text without control characters, so that a text of others can neither control the terminal nor imitate lines.
func visible(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

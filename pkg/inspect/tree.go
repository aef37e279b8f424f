package inspect

import (
	"fmt"
	"io"
)

// Node is a line of a tree, with the lines below it.
type Node struct {
	Text     string
	Children []*Node
	// Object is the object of a line of a Graph, nil for others. Reference is true for a destination: the object may be in other lines too.
	Object    *GraphNode
	Reference bool
}

// add adds a child and returns it.
func (n *Node) add(format string, args ...any) *Node {
	child := &Node{Text: fmt.Sprintf(format, args...)}
	n.Children = append(n.Children, child)
	return child
}

// Write prints the tree with lines between parents and children.
func (n *Node) Write(to io.Writer) error {
	return n.writeIndented(to, "", "")
}

func (n *Node) writeIndented(to io.Writer, first, rest string) error {
	if _, err := fmt.Fprintln(to, first+Visible(n.Text)); err != nil {
		return err
	}
	for i, child := range n.Children {
		branch, indent := "├─ ", "│  "
		if i == len(n.Children)-1 {
			branch, indent = "└─ ", "   "
		}
		if err := child.writeIndented(to, rest+branch, rest+indent); err != nil {
			return err
		}
	}
	return nil
}

package inspect

import (
	"strings"
	"testing"
)

// TestVisible replaces the characters that control a terminal.
func TestVisible(t *testing.T) {
	const hostile = "a\x1b[2J\r\nb\u009b\tc"
	const harmless = "a\uFFFD[2J\uFFFD b\uFFFD c"
	root := &Node{Text: "root"}
	root.add("%s", hostile).add("leaf")
	root.add("last")
	var out strings.Builder
	if err := root.Write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "root\n├─ " + harmless + "\n│  └─ leaf\n└─ last\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
}

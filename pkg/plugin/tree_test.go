package plugin

import (
	"strings"
	"testing"
)

// TestVisible replaces the characters that control a terminal, in trees and tables.
func TestVisible(t *testing.T) {
	const hostile = "a\x1b[2J\r\nb\u009b\tc"
	const harmless = "a\uFFFD[2J\uFFFD b\uFFFD c"
	root := &node{text: "root"}
	root.add("%s", hostile).add("leaf")
	root.add("last")
	var out strings.Builder
	if err := root.write(&out); err != nil {
		t.Fatal(err)
	}
	if want := "root\n├─ " + harmless + "\n│  └─ leaf\n└─ last\n"; out.String() != want {
		t.Errorf("got %q, want %q", out.String(), want)
	}
	out.Reset()
	if err := table(&out, [][]string{{hostile, "2"}}); err != nil || out.String() != harmless+"   2\n" {
		t.Errorf("got %q, %v", out.String(), err)
	}
}

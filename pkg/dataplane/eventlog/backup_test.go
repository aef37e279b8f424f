package eventlog

import (
	"bytes"
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What a log holds is in its backup, and no more: another log restored from it hands the same out.
func TestBackupRestore(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir()})
	a := stream(t, l, "a")
	appendAll(t, a, "", numbers(0, 10)...)
	appendAll(t, a, "q", "again")
	m, err := l.Stream(t.Context(), StreamConfig{ID: "m", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, m, "", "in memory")
	stream(t, l, "empty")
	k, _ := consume(t, a, "", ConsumeOptions{MaxFrames: 1})
	k.collect(t, 4)
	eventually(t, "what is done is removed", func() bool { return queues(t, a)[""] == 6 })
	var content bytes.Buffer
	if err := l.Backup(t.Context(), &content); err != nil {
		t.Fatal(err)
	}

	restored := open(t, Options{Dir: t.TempDir()})
	if err := restored.Restore(t.Context(), bytes.NewReader(content.Bytes())); err != nil {
		t.Fatal(err)
	}
	s := stream(t, restored, "a")
	all, _ := consume(t, s, "", ConsumeOptions{})
	got := all.collect(t, 6)
	if diff := cmp.Diff(numbers(4, 10), got); diff != "" {
		t.Errorf("records of stream 'a' (-want +got): %s", diff)
	}
	q, _ := consume(t, s, "q", ConsumeOptions{})
	q.collect(t, 1)
	memory, err := restored.Stream(t.Context(), StreamConfig{ID: "m", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	inMemory, _ := consume(t, memory, "", ConsumeOptions{})
	inMemory.collect(t, 1)

	lines := bytes.SplitAfter(content.Bytes(), []byte("\n"))
	for name, damaged := range map[string][]byte{
		"nothing":        nil,
		"no end":         bytes.Join(lines[:3], nil),
		"a line missing": bytes.Join(slices.Delete(slices.Clone(lines), 1, 2), nil),
		"half a line":    content.Bytes()[:content.Len()-5],
	} {
		other := open(t, Options{Dir: t.TempDir()})
		if err := other.Restore(t.Context(), bytes.NewReader(damaged)); !errors.Is(err, ErrIncomplete) {
			t.Errorf("%s: %v, want ErrIncomplete", name, err)
		}
	}
}

package eventlog

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/backup"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
)

// A backup has exactly the segments of a log: a log restored from it delivers the same records.
func TestBackupRestore(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir()})
	a := stream(t, l, "a")
	appendAll(t, a, "", numbers(0, 10)...)
	appendAll(t, a, "q", "again")
	m, err := l.Stream(patient(t), StreamConfig{ID: "m", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	appendAll(t, m, "", "in memory")
	stream(t, l, "empty")
	k, _ := start(t, a, "", ConsumeOptions{MaxSegments: 1})
	k.collect(t, 4)
	eventually(t, "acknowledged segments are removed", func() bool { return queues(t, a)[""] == 6 })
	var content bytes.Buffer
	// Through the socket, like the command.
	running, err := backup.Connect(t.Context(), l.opts.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := running.Backup(t.Context(), &content); err != nil {
		t.Fatal(err)
	}

	restored := open(t, Options{Dir: t.TempDir()})
	if running, err = backup.Connect(t.Context(), restored.opts.Dir); err != nil {
		t.Fatal(err)
	}
	if err := running.Restore(t.Context(), bytes.NewReader(content.Bytes())); err != nil {
		t.Fatal(err)
	}
	s := stream(t, restored, "a")
	all, _ := start(t, s, "", ConsumeOptions{})
	got := all.collect(t, 6)
	if diff := cmp.Diff(numbers(4, 10), got); diff != "" {
		t.Errorf("records of stream 'a' (-want +got): %s", diff)
	}
	q, _ := start(t, s, "q", ConsumeOptions{})
	q.collect(t, 1)
	memory, err := restored.Stream(patient(t), StreamConfig{ID: "m", Memory: true})
	if err != nil {
		t.Fatal(err)
	}
	inMemory, _ := start(t, memory, "", ConsumeOptions{})
	inMemory.collect(t, 1)

	lines := bytes.SplitAfter(content.Bytes(), []byte("\n"))
	for name, damaged := range map[string][]byte{
		"nothing":        nil,
		"no end":         bytes.Join(lines[:3], nil),
		"a line missing": bytes.Join(slices.Delete(slices.Clone(lines), 1, 2), nil),
		"half a line":    content.Bytes()[:content.Len()-5],
	} {
		other := open(t, Options{Dir: t.TempDir()})
		if err := other.Restore(patient(t), bytes.NewReader(damaged)); !errors.Is(err, backup.ErrIncomplete) {
			t.Errorf("%s: %v, want ErrIncomplete", name, err)
		}
	}
	if running, err = backup.Connect(t.Context(), open(t, Options{Dir: t.TempDir()}).opts.Dir); err != nil {
		t.Fatal(err)
	}
	if err := running.Restore(t.Context(), bytes.NewReader(lines[0])); err == nil || !strings.Contains(err.Error(), "1 segments") {
		t.Errorf("half a backup from another process: %v, want an error with the position of its end", err)
	}
}

// Undelivered records that are moved to other segments while a backup reads the stream, even repeatedly, are in the backup.
func TestBackupWhileRecordsMove(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir()})
	s := stream(t, l, "a")
	want := numbers(0, 10)
	appendAll(t, s, "", want...)
	from, _ := start(t, s, "", ConsumeOptions{})
	move := func(segment *Segment, to string) {
		for _, data := range segment.Records {
			appendAll(t, s, to, string(data))
		}
		segment.Ack()
	}
	saved := map[string]bool{}
	reads := 0
	err := stored{l}.Segments(patient(t), func(segment *backup.Segment) error {
		records, err := layout.Records(segment.Data)
		if err != nil {
			return err
		}
		for _, r := range records {
			saved[string(r)] = true
		}
		switch reads++; reads {
		case 1:
			for range want {
				move(from.next(t), "q")
			}
			eventually(t, "the records were moved", func() bool { return queues(t, s)[""] == 0 })
		case 2:
			from, _ = start(t, s, "q", ConsumeOptions{})
			for range want {
				move(from.next(t), "r")
			}
			eventually(t, "the records were moved", func() bool { return queues(t, s)["q"] == 0 })
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range want {
		if !saved[r] {
			t.Errorf("record %s is not in the backup", r)
		}
	}
}

// Segments of streams whose objects do not exist are skipped, and reported once the others are restored.
func TestRestoreSkips(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir()})
	for _, id := range []string{"deleted", "kept", "lost"} {
		s := stream(t, l, id)
		appendAll(t, s, "", numbers(0, 3)...)
		appendAll(t, s, "q", "again")
	}
	var content bytes.Buffer
	if err := l.Backup(patient(t), &content); err != nil {
		t.Fatal(err)
	}
	restored := open(t, Options{Dir: t.TempDir()})
	var notified []string
	restored.SetRestoreHooks(RestoreHooks{
		Exists:   func(_ context.Context, id string) (bool, error) { return id == "kept", nil },
		Restored: func(id string) { notified = append(notified, id) },
	})
	err := restored.Restore(patient(t), bytes.NewReader(content.Bytes()))
	if !errors.Is(err, backup.ErrSkipped) || !strings.Contains(err.Error(), "Broker default/deleted with UID deleted (") || !strings.Contains(err.Error(), "Broker default/lost") {
		t.Errorf("error %v, want one that names the streams that do not exist", err)
	}
	if diff := cmp.Diff([]string{"kept"}, notified); diff != "" {
		t.Errorf("restored streams (-want +got):\n%s", diff)
	}
	ids, err := restored.StreamIDs(patient(t))
	if diff := cmp.Diff([]string{"kept"}, ids); err != nil || diff != "" {
		t.Errorf("streams %v (-want +got):\n%s", err, diff)
	}
	all, _ := start(t, stream(t, restored, "kept"), "", ConsumeOptions{})
	all.collect(t, 3)
}

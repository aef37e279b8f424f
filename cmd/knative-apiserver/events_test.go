package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/app"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// Events that are saved from a running server exist in another one after a restore, from a file or standard input.
func TestEventsCommands(t *testing.T) {
	dirs := []string{t.TempDir(), t.TempDir(), t.TempDir()}
	if _, err := execute(t, newEventsCommand(), nil, "save", "--data-dir="+dirs[0]); err == nil {
		t.Error("saved where no server runs")
	}
	var streams []*eventlog.Stream
	for _, dir := range dirs {
		log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: app.EventLogDir(dir)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := log.Close(); err != nil {
				t.Error(err)
			}
		})
		s, err := log.Stream(t.Context(), eventlog.StreamConfig{ID: "orders"})
		if err != nil {
			t.Fatal(err)
		}
		streams = append(streams, s)
	}
	if err := streams[0].Append(t.Context(), eventlog.Record{Data: []byte("event")}); err != nil {
		t.Fatal(err)
	}
	saved, err := execute(t, newEventsCommand(), nil, "save", "--data-dir="+dirs[0])
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "events.json")
	if _, err := execute(t, newEventsCommand(), nil, "save", "--data-dir="+dirs[0], file); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(file); err != nil || !bytes.Equal(content, saved.Bytes()) {
		t.Errorf("the file has %q, %v, standard output had %q", content, err, saved)
	}
	for i, from := range map[int]string{1: file, 2: "-"} {
		if _, err := execute(t, newEventsCommand(), saved, "restore", "--data-dir="+dirs[i], from); err != nil {
			t.Fatal(err)
		}
		if queues, err := streams[i].Queues(t.Context()); err != nil || queues[""] != 1 {
			t.Errorf("restored from %s: got %v, %v, want 1 frame", from, queues, err)
		}
	}
	if _, err := execute(t, newEventsCommand(), bytes.NewReader(saved.Bytes()), "restore", "--data-dir="+dirs[1], "-"); err == nil {
		t.Error("restored from nothing")
	}
}

package eventlog

import (
	"os"
	"strings"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// TestSingleBecomesCluster checks that a cluster delivers the events of the single server that it replaces, and keeps no residue.
func TestSingleBecomesCluster(t *testing.T) {
	t.Parallel()
	o := cluster(t, 2)
	single := Options{Dir: o[0].Dir}
	l := open(t, single)
	s := stream(t, l, "a")
	appendAll(t, s, "", numbers(0, 20)...)
	appendAll(t, s, "q", "one", "two")
	k, _ := start(t, s, "", ConsumeOptions{MaxSegments: 1})
	k.collect(t, 5)
	retain(t, retained(t, l, "kept"), "x", numbers(0, 300)...)
	if err := retained(t, l, "together").AppendTogether(t.Context(), Record{Data: []byte("0")}, Record{Data: []byte("1")}); err != nil {
		t.Fatal(err)
	}
	closed(t, l)

	logs := []*Log{open(t, o[0]), open(t, o[1])}
	moved := opened(t, logs[1], "a")
	shared, _ := start(t, moved, "", ConsumeOptions{})
	got := map[string]bool{}
	for len(got) < 15 {
		for _, r := range shared.collect(t, 1) {
			got[r] = true
		}
	}
	for _, r := range numbers(5, 20) {
		if !got[r] {
			t.Errorf("record '%s' of the single server was not delivered", r)
		}
	}
	queue, _ := start(t, moved, "q", ConsumeOptions{})
	queue.collect(t, 2)
	eventually(t, "the store of the single server is removed", func() bool {
		_, err := os.Stat(server.SingleDir(o[0].Dir))
		return os.IsNotExist(err)
	})

	if all, _ := readAll(t, retained(t, logs[1], "kept"), "x", 100, 1<<20); len(all) < 300 || all[299] != numbers(299, 300)[0] {
		t.Errorf("%d retained messages were moved, want 300", len(all))
	}
	messages, _, err := retained(t, logs[1], "together").Read(t.Context(), "", 1, 1, 1<<20)
	if err != nil || len(messages) != 1 || len(messages[0].Records) != 2 || string(messages[0].Records[1]) != "1" {
		t.Errorf("moved %+v, want a message of two records: %v", messages, err)
	}

	closed(t, logs[0])
	if l, err := Open(t.Context(), single); err == nil || !strings.Contains(err.Error(), "cluster") {
		if err == nil {
			l.Close()
		}
		t.Errorf("opening a cluster's store by a single server: %v, want an error", err)
	}
}

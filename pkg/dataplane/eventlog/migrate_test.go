package eventlog

import (
	"os"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/sets"

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
	// Acknowledged records may be delivered again if the process is paused.
	for missing := sets.New(numbers(5, 20)...); len(missing) > 0; {
		missing.Delete(shared.collect(t, 1)...)
	}
	queue, _ := start(t, moved, "q", ConsumeOptions{})
	queue.collect(t, 2)
	eventually(t, "the store of the single server is removed", func() bool {
		_, err := os.Stat(server.SingleDir(o[0].Dir))
		return os.IsNotExist(err)
	})

	// A request to the cluster may take too long.
	eventually(t, "the retained messages were moved", func() bool {
		messages, _, err := retained(t, logs[1], "kept").Read(t.Context(), "x", 1, 1000, 1<<20)
		return err == nil && len(messages) >= 300 && string(messages[299].Records[0]) == "299"
	})
	eventually(t, "a message of two records was moved", func() bool {
		messages, _, err := retained(t, logs[1], "together").Read(t.Context(), "", 1, 1, 1<<20)
		return err == nil && len(messages) == 1 && len(messages[0].Records) == 2 && string(messages[0].Records[1]) == "1"
	})

	closed(t, logs[0])
	if l, err := Open(t.Context(), single); err == nil || !strings.Contains(err.Error(), "cluster") {
		if err == nil {
			l.Close()
		}
		t.Errorf("opening a cluster's store by a single server: %v, want an error", err)
	}
}

package simulation

import (
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// TestRetryKeepsOrder covers an append of several segments of which a server rejects the first ones for a moment: they are not
// stored behind the others.
func TestRetryKeepsOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := newNetwork(chance{1})
		s := newNATSServer(n)
		log, err := eventlog.Open(t.Context(), eventlog.Options{
			URL: "nats://" + serverAddress, Logger: logr.Discard(),
			Dial: func(_, address string) (net.Conn, error) { return n.connect("client", address, true) },
		})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := log.Stream(t.Context(), eventlog.StreamConfig{ID: "stream"})
		if err != nil {
			t.Fatal(err)
		}
		s.mu.Lock()
		s.failures = 2
		s.mu.Unlock()
		var records []eventlog.Record
		for _, data := range []string{"a", "b", "c"} {
			records = append(records, eventlog.Record{Queue: "ordered", Data: []byte(data), Alone: true})
		}
		if err := stream.Append(t.Context(), records...); err != nil {
			t.Fatal(err)
		}
		var stored []string
		for _, m := range s.streams["KN_local_stream"].messages {
			// A version and the length precede the record.
			stored = append(stored, string(m.data[2:]))
		}
		if diff := cmp.Diff([]string{"a", "b", "c"}, stored); diff != "" {
			t.Errorf("stored (-want +got):\n%s", diff)
		}
		if err := log.Close(); err != nil {
			t.Error(err)
		}
		s.crash()
		<-time.After(time.Minute)
	})
}

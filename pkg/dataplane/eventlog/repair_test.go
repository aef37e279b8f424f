package eventlog

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
)

var inf, sum, consumerOfShared = server.JetStreamMetaFile, server.JetStreamMetaFileSum, "obs/" + layout.Consumer("")

// eventing Event Acknowledgement and Delivery Retry: accepted events are delivered, wherever the process was killed
// between the files of the metadata of a stream or a consumer; and later starts find the stream intact.
func TestRepair(t *testing.T) {
	for name, damage := range map[string]struct {
		removed, emptied []string
		// written is a file with another content.
		written string
		// gone is true if the stream was being deleted.
		gone bool
	}{
		"none":                              {},
		"no checksum":                       {removed: []string{sum}},
		"empty checksum":                    {emptied: []string{sum}},
		"empty description":                 {emptied: []string{inf}, removed: []string{sum}},
		"both empty":                        {emptied: []string{inf, sum}},
		"checksum of another description":   {written: sum},
		"neither":                           {removed: []string{inf, sum}},
		"nothing but messages":              {removed: []string{inf, sum, "obs"}},
		"no description":                    {removed: []string{inf}, gone: true},
		"consumer, no checksum":             {removed: []string{consumerOfShared + "/" + sum}},
		"consumer, empty description":       {emptied: []string{consumerOfShared + "/" + inf}},
		"consumer, incomplete description":  {written: consumerOfShared + "/" + inf},
		"consumer, empty checksum":          {emptied: []string{consumerOfShared + "/" + sum}},
		"consumer, nothing":                 {removed: []string{consumerOfShared + "/" + inf, consumerOfShared + "/" + sum}},
		"stream and consumer, no checksums": {removed: []string{sum, consumerOfShared + "/" + sum}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := Options{Dir: t.TempDir()}
			l := open(t, o)
			s := stream(t, l, "a")
			appendAll(t, s, "", numbers(0, 20)...)
			k, _ := start(t, s, "", ConsumeOptions{})
			k.collect(t, 5)
			eventually(t, "segments are removed", func() bool { return queues(t, s)[""] == 15 })
			closed(t, l)

			dir := filepath.Join(o.Dir, "jetstream/$G/streams", s.names.Name())
			for _, file := range append([]string{inf, sum}, consumerOfShared+"/"+inf, consumerOfShared+"/"+sum) {
				if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
					t.Fatalf("the server has other files: %v", err)
				}
			}
			for _, file := range damage.removed {
				if err := os.RemoveAll(filepath.Join(dir, file)); err != nil {
					t.Fatal(err)
				}
			}
			for _, file := range damage.emptied {
				if err := os.Truncate(filepath.Join(dir, file), 0); err != nil {
					t.Fatal(err)
				}
			}
			if damage.written != "" {
				if err := os.WriteFile(filepath.Join(dir, damage.written), []byte(`{"name":`), 0o600); err != nil {
					t.Fatal(err)
				}
			}

			l = open(t, o)
			if _, err := os.Stat(dir); damage.gone != os.IsNotExist(err) {
				t.Errorf("the directory of the stream: %v, want it deleted: %v", err, damage.gone)
			}
			s = stream(t, l, "a")
			k, _ = start(t, s, "", ConsumeOptions{})
			if !damage.gone {
				if diff := cmp.Diff(numbers(5, 20), k.collect(t, 15)); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
			}
			appendAll(t, s, "", "new")
			if f := k.next(t); string(f.Records[0]) != "new" {
				t.Errorf("the record '%s' was delivered, want the new one", f.Records[0])
			}
			eventually(t, "segments are removed again", func() bool { return queues(t, s)[""] == 1 })
			closed(t, l)

			l = open(t, o)
			if faults := l.server.Current().Unrepaired(); len(faults) > 0 {
				t.Errorf("after the second start: %v", faults)
			}
			ids, err := l.StreamIDs(patient(t))
			if diff := cmp.Diff([]string{"a"}, ids); diff != "" || err != nil {
				t.Errorf("streams after the second start: %v, %s", err, diff)
			}
			consumer, err := l.server.Current().JetStream.Consumer(patient(t), s.names.Name(), layout.Consumer(""))
			if err != nil {
				t.Fatalf("consumer after the second start: %v", err)
			}
			if got := consumer.CachedInfo(); got.NumPending+uint64(got.NumAckPending) != 1 {
				t.Errorf("%d and %d segments are pending after the second start, want 1", got.NumPending, got.NumAckPending)
			}
		})
	}
}

package layout

import "testing"

// Names are stored: other ones would not find the events of an earlier version.
func TestNames(t *testing.T) {
	s := Stream{Installation: "local", ID: "uid"}
	for got, want := range map[string]string{
		s.Name(): "KN_local_uid", s.Subjects(): "KN.local.uid.>", Subjects("local"): "KN.local.>",
		Stream{Installation: "local", ID: "x", Retained: true}.Name(): "KNR_local_x", RetainedSubjects("local"): "KNR.local.>",
		Stream{Installation: "local", ID: "x", Retained: true}.Subject("q"): "KNR.local.x.queue.q",
		s.Subject(""): "KN.local.uid.shared", s.Subject("q"): "KN.local.uid.queue.q", Consumer(""): "shared", Consumer("q"): "queue_q",
	} {
		if got != want {
			t.Errorf("name '%s', want '%s'", got, want)
		}
	}
	for _, queue := range []string{"", "q"} {
		if got := s.Queue(s.Subject(queue)); got != queue {
			t.Errorf("queue '%s' of a message of '%s'", got, queue)
		}
	}
}

package consume

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go"
)

// A late status of a request that brought all its segments does not end the next one.
func TestStatus(t *testing.T) {
	for status, want := range map[[2]string]error{
		{"100", "Idle Heartbeat"}:                nil,
		{"408", "Request Timeout"}:               errExpired,
		{"409", "Batch Completed"}:               nil,
		{"409", "Message Size Exceeds MaxBytes"}: errTooSmall,
	} {
		p := &puller{wake: make(chan struct{}, 1), remaining: 1}
		p.receive(&nats.Msg{Header: nats.Header{"Status": {status[0]}, "Description": {status[1]}}})
		if !errors.Is(p.ended, want) || len(p.wake) == 1 != (want != nil) {
			t.Errorf("%s: ended by %v, want %v", status, p.ended, want)
		}
	}
	for _, status := range [][2]string{{"409", "Consumer Deleted"}, {"409", "Leadership Change"}, {"503", ""}} {
		p := &puller{wake: make(chan struct{}, 1), remaining: 1}
		p.receive(&nats.Msg{Header: nats.Header{"Status": {status[0]}, "Description": {status[1]}}})
		if p.ended == nil || errors.Is(p.ended, errTooSmall) || errors.Is(p.ended, errExpired) {
			t.Errorf("%s: ended by %v, want an error of its own", status, p.ended)
		}
	}
}

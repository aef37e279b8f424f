package eventlog

import (
	"encoding/json"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// writeAtomically stores frames as one atomic batch: all or none.
func (s *Stream) writeAtomically(session *server.Session, frames []*frame) error {
	id := nuid.Next()
	last := len(frames) - 1
	for i, f := range frames {
		msg := &nats.Msg{Subject: s.names.Subject(f.queue), Data: f.data, Header: nats.Header{
			"Nats-Batch-Id":       {id},
			"Nats-Batch-Sequence": {strconv.Itoa(i + 1)},
		}}
		if i < last {
			if err := session.Conn.PublishMsg(msg); err != nil {
				return err
			}
			continue
		}
		msg.Header["Nats-Batch-Commit"] = []string{"1"}
		return s.commitBatch(session, msg)
	}
	return nil
}

// commitBatch sends the last message of a batch and waits for the answer.
func (s *Stream) commitBatch(session *server.Session, msg *nats.Msg) error {
	if session.Local {
		slow := time.AfterFunc(time.Second, s.log.server.Suspect)
		defer slow.Stop()
	}
	answer, err := session.Conn.RequestMsg(msg, session.AckTimeout())
	if err != nil {
		return err
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(answer.Data, &ack); err != nil {
		return err
	}
	if ack.Error != nil {
		return ack.Error
	}
	return nil
}

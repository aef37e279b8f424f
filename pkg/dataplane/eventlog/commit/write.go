package commit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// slowAfter is the response time after which the embedded server is suspected: it does not respond after a write error.
const slowAfter = time.Second

// writeOnce writes segments with the current session, and syncs them.
func (w *Writer) writeOnce(segments []*segment) error {
	s := w.options.Server
	ctx, cancel := context.WithTimeout(s.Context(), retryFor)
	defer cancel()
	session, err := s.Session(ctx)
	if err != nil {
		if s.Context().Err() == nil && errors.Is(err, context.DeadlineExceeded) {
			return server.ErrUnavailable
		}
		return err
	}
	if session.SyncFailed() {
		return fmt.Errorf("%w: the server is restarted after a sync failed", server.ErrUnavailable)
	}
	for len(segments) > 0 && err == nil {
		n := min(len(segments), maxMessages)
		if n > 1 && w.atomic(session) {
			err = w.writeAtomically(session, segments[:n])
		} else {
			err = w.writeEach(session, segments[:n])
		}
		segments = segments[n:]
	}
	if err == nil && session.Local && !w.inMemory() {
		if err = w.disk.sync(); err != nil {
			session.FailSync(w.disk.rewrite)
			return err
		}
	}
	lost := errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
	if lost && (w.inMemory() || w.options.Recreate) && !w.closed.Load() {
		// A stream in memory was lost with its server, a retained one was deleted because it was empty; write tries again.
		if _, err := session.EnsureStream(ctx, w.options.Config); err != nil {
			return s.Classify(err)
		}
		// Its files have numbers from 1 again.
		w.disk.close()
		w.disk.last = 0
	}
	return s.Classify(err)
}

func (w *Writer) inMemory() bool { return w.options.Config.Storage == jetstream.MemoryStorage }

// atomic reports whether several messages are sent as an atomic batch, so that a server that rejects some for a moment does not
// store them behind the others when they are repeated. With replicas, it is one proposal instead of many. On the disk of the
// single server in this process, a batch is written twice and its second copy removed again, which costs many times the cost of
// a sync; that server accepts nothing after a failed write, and all messages of a commit are synced at once anyway.
func (w *Writer) atomic(session *server.Session) bool { return !session.Local || w.inMemory() }

func (w *Writer) message(s *segment) *nats.Msg {
	return &nats.Msg{Subject: w.options.Stream.Subject(s.queue), Data: s.data}
}

// writeEach stores segments as single messages, and waits until all are acknowledged.
func (w *Writer) writeEach(session *server.Session, segments []*segment) error {
	futures := make([]jetstream.PubAckFuture, 0, len(segments))
	var failed error
	for _, s := range segments {
		future, err := session.JetStream.PublishMsgAsync(w.message(s))
		if err != nil {
			failed = err
			break
		}
		futures = append(futures, future)
	}
	for _, future := range futures {
		if err := w.await(session, future); err != nil && failed == nil {
			failed = err
		}
	}
	return failed
}

// await waits for an acknowledgement.
func (w *Writer) await(session *server.Session, future jetstream.PubAckFuture) error {
	slow := time.NewTimer(slowAfter)
	defer slow.Stop()
	for {
		select {
		case <-future.Ok():
			return nil
		case err := <-future.Err():
			return err
		case <-session.Ended():
			return server.ErrEnded
		case <-slow.C:
			w.options.Server.Suspect()
			slow.Reset(slowAfter)
		}
	}
}

// writeAtomically stores segments as one atomic batch: all or none.
func (w *Writer) writeAtomically(session *server.Session, segments []*segment) error {
	id := nuid.Next()
	last := len(segments) - 1
	for i, s := range segments {
		msg := w.message(s)
		msg.Header = nats.Header{"Nats-Batch-Id": {id}, "Nats-Batch-Sequence": {strconv.Itoa(i + 1)}}
		if i < last {
			if err := session.Conn.PublishMsg(msg); err != nil {
				return err
			}
			continue
		}
		msg.Header["Nats-Batch-Commit"] = []string{"1"}
		return w.commitAtomic(session, msg)
	}
	return nil
}

// commitAtomic sends the last message of an atomic batch and waits for the response.
func (w *Writer) commitAtomic(session *server.Session, msg *nats.Msg) error {
	if session.Local {
		slow := time.AfterFunc(slowAfter, w.options.Server.Suspect)
		defer slow.Stop()
	}
	response, err := session.Conn.RequestMsg(msg, session.AckTimeout())
	if err != nil {
		return err
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(response.Data, &ack); err != nil {
		return err
	}
	if ack.Error != nil {
		return ack.Error
	}
	return nil
}

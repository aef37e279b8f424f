package eventlog

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/commit"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/server"
)

// ErrNotFound is returned for a message or a retained stream that does not exist.
var ErrNotFound = errors.New("not found in the event log")

// Retained is a stream whose messages stay until they are deleted: reading does not remove them. Its size is no part of the limits of
// the log, because only its user can make room in it: the user bounds it by Purge. Its methods may be called concurrently, also by
// other processes. Messages of several records are compressed.
type Retained struct {
	log   *Log
	id    string
	names layout.Stream
}

// RetainedState describes a retained stream.
type RetainedState struct {
	ID string
	// Created distinguishes the stream from an earlier one of the same ID, whose sequences it repeats.
	Created time.Time
	// First and Last are the sequences of the first and the last message, and those between that were deleted. First is greater than Last
	// in an empty stream.
	First, Last uint64
	// FirstTime and LastTime are the times of the first and the last message.
	FirstTime, LastTime time.Time
	Messages            uint64
	Bytes               int64
}

// RetainedMessage is a message of a retained stream.
type RetainedMessage struct {
	// Sequence increases with each message of the stream.
	Sequence uint64
	// Time is the time at which the message was stored.
	Time time.Time
	// Queue is the queue to which the message was appended.
	Queue string
	// Records are the records in the order in which they were appended: one, unless AppendTogether stored them.
	Records [][]byte
}

// Retained returns a retained stream, which the first Append creates. The ID consists of letters, digits, "-" and "_".
func (l *Log) Retained(id string) (*Retained, error) {
	if !server.ValidName(id) {
		return nil, fmt.Errorf("event log: stream '%s' must consist of letters, digits, '-' and '_'", id)
	}
	return &Retained{log: l, id: id, names: layout.Stream{Installation: l.opts.Installation, ID: id, Retained: true}}, nil
}

// writer returns the writer of the stream, of which the log has one from the first append until DeleteStream. The first append creates the stream,
// or updates its configuration.
func (r *Retained) writer(ctx context.Context) (*commit.Writer, error) {
	l := r.log
	l.mu.Lock()
	w := l.retained[r.id]
	l.mu.Unlock()
	if w != nil {
		return w, nil
	}
	// Many appends may be the first at the same time. The creation does not end with the context of one of them.
	created := l.creating.DoChan(r.id, func() (any, error) { return r.create(context.WithoutCancel(ctx)) })
	select {
	case result := <-created:
		if result.Err != nil {
			return nil, result.Err
		}
		return result.Val.(*commit.Writer), nil
	case <-ctx.Done():
		return nil, r.explain("create", ctx.Err())
	}
}

// create creates the stream, or updates its configuration, and returns its writer.
func (r *Retained) create(ctx context.Context) (*commit.Writer, error) {
	l := r.log
	session, ctx, cancel, err := l.server.Request(ctx)
	if err != nil {
		return nil, r.explain("create", err)
	}
	defer cancel()
	config := r.config()
	underReplicated, err := session.EnsureStream(ctx, config)
	if err != nil {
		return nil, r.explain("create", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.server.Streams.Track(config, underReplicated)
	if w := l.retained[r.id]; w != nil {
		return w, nil
	}
	w := commit.New(commit.Options{
		Server: l.server, Stream: r.names, Config: config, Metrics: &l.metrics.commit, Space: l.space, Recreate: true, Compress: true,
		Dir: server.MessageDir(l.opts.Dir, config.Name),
	})
	l.retained[r.id] = w
	return w, nil
}

func (r *Retained) config() jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: r.names.Name(), Description: "Retained: " + r.id, Subjects: []string{r.names.Subjects()},
		Metadata:  map[string]string{layout.RetainedKey: r.id},
		Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardNew, MaxBytes: -1,
		Replicas: r.log.opts.Replicas, AllowAtomicPublish: true, AllowDirect: true,
	}
}

// Append is like Stream.Append, except that each record becomes a message.
func (r *Retained) Append(ctx context.Context, records ...Record) error {
	for i := range records {
		records[i].Alone = true
	}
	return r.AppendTogether(ctx, records...)
}

// AppendTogether is like Append, except that records that are appended at about the same time to the same queue share a message, unless they
// are Alone.
func (r *Retained) AppendTogether(ctx context.Context, records ...Record) error {
	w, err := r.writer(ctx)
	if err != nil {
		return err
	}
	return w.Append(ctx, records...)
}

// Pending is an append whose result is not known yet.
type Pending = commit.Pending

// Start is AppendTogether of one record without the wait for its result. started is false if nothing was started, because this process has not
// appended to the stream yet.
func (r *Retained) Start(record Record) (p Pending, started bool, err error) {
	r.log.mu.Lock()
	w := r.log.retained[r.id]
	r.log.mu.Unlock()
	if w == nil {
		return Pending{}, false, nil
	}
	p, err = w.Start(record)
	return p, err == nil, err
}

// State returns the state of the stream. queues also has the number of messages of each queue. It returns ErrNotFound if the stream
// does not exist.
func (r *Retained) State(ctx context.Context) (state RetainedState, queues map[string]uint64, err error) {
	var info jetstream.StreamInfo
	if err := r.request(ctx, "STREAM.INFO", map[string]any{"subjects_filter": r.names.Subjects()}, &info); err != nil {
		return state, nil, err
	}
	queues = make(map[string]uint64, len(info.State.Subjects))
	for subject, n := range info.State.Subjects {
		queues[r.names.Queue(subject)] = n
	}
	return stateOf(&info), queues, nil
}

func stateOf(info *jetstream.StreamInfo) RetainedState {
	return RetainedState{
		ID: info.Config.Metadata[layout.RetainedKey], Created: info.Created, First: info.State.FirstSeq, Last: info.State.LastSeq,
		FirstTime: info.State.FirstTime, LastTime: info.State.LastTime, Messages: info.State.Msgs, Bytes: int64(info.State.Bytes),
	}
}

// RetainedStates returns the states of all retained streams whose ID has a prefix.
func (l *Log) RetainedStates(ctx context.Context, prefix string) ([]RetainedState, error) {
	session, err := l.server.Session(ctx)
	if err != nil {
		return nil, fmt.Errorf("event log: list retained streams: %w", err)
	}
	var all []RetainedState
	list := session.JetStream.ListStreams(ctx, jetstream.WithStreamListSubject(layout.RetainedSubjects(l.opts.Installation)))
	for info := range list.Info() {
		if id := info.Config.Metadata[layout.RetainedKey]; id != "" && strings.HasPrefix(id, prefix) {
			all = append(all, stateOf(info))
		}
	}
	if list.Err() != nil {
		return nil, l.server.Explain("list retained streams", list.Err())
	}
	return all, nil
}

// SetRetainedBytes sets the size of all retained streams whose ID has a prefix, which the limit of the log does not include.
func (l *Log) SetRetainedBytes(prefix string, bytes int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before := l.retainedSizes[prefix]
	l.retainedSizes[prefix] = bytes
	l.retainedBytes.Add(bytes - before)
}

// SpaceErr returns an error that wraps ErrFull while the filesystem of the log has too little free space.
func (l *Log) SpaceErr() error {
	if l.space == nil {
		return nil
	}
	return l.space.Check(0)
}

// Limit returns the bytes that the embedded log may hold, or 0 if it is not known.
func (l *Log) Limit() int64 {
	switch {
	case l.opts.MaxBytes > 0:
		return l.opts.MaxBytes
	case l.space != nil:
		return l.space.Size()
	}
	return 0
}

// storedMessage is a message in a response of JetStream.
type storedMessage struct {
	Message struct {
		Subject  string    `json:"subject"`
		Sequence uint64    `json:"seq"`
		Data     []byte    `json:"data"`
		Time     time.Time `json:"time"`
	} `json:"message"`
}

// Get returns a message, or ErrNotFound.
func (r *Retained) Get(ctx context.Context, sequence uint64) (RetainedMessage, error) {
	if sequence == 0 {
		return RetainedMessage{}, ErrNotFound
	}
	var stored storedMessage
	if err := r.request(ctx, "STREAM.MSG.GET", map[string]any{"seq": sequence}, &stored); err != nil {
		return RetainedMessage{}, err
	}
	return r.message(stored.Message.Subject, stored.Message.Sequence, stored.Message.Time, stored.Message.Data)
}

// SequenceAt returns the sequence of the first message that was stored at a time or later, or ErrNotFound.
func (r *Retained) SequenceAt(ctx context.Context, t time.Time) (uint64, error) {
	var stored storedMessage
	err := r.request(ctx, "STREAM.MSG.GET", map[string]any{"start_time": t, "next_by_subj": r.names.Subjects()}, &stored)
	return stored.Message.Sequence, err
}

func (r *Retained) message(subject string, sequence uint64, t time.Time, data []byte) (RetainedMessage, error) {
	records, err := layout.Records(data)
	if err != nil || len(records) == 0 {
		return RetainedMessage{}, fmt.Errorf("event log: message %d of stream '%s' is damaged: %w", sequence, r.id, errors.Join(err, ErrNotFound))
	}
	return RetainedMessage{Sequence: sequence, Time: t, Queue: r.names.Queue(subject), Records: records}, nil
}

// Read returns at most count messages from a sequence on, in their order, of one queue, or of all queues if it is empty. It stops at
// the first message with which their records have so many bytes or more. Damaged messages are left out. next is the sequence after the last one
// that was read, or 0 if there are no more.
func (r *Retained) Read(ctx context.Context, queue string, from uint64, count, bytes int) (messages []RetainedMessage, next uint64, err error) {
	// A copy of the stream that is being moved may not respond.
	session, ctx, cancel, err := r.log.server.Request(ctx)
	if err != nil {
		return nil, 0, r.explain("read", err)
	}
	defer cancel()
	inbox := session.Conn.NewInbox()
	subscription, err := session.Conn.SubscribeSync(inbox)
	if err != nil {
		return nil, 0, r.explain("read", err)
	}
	defer subscription.Unsubscribe() //nolint:errcheck // the connection is closed then
	subject := r.names.Subjects()
	if queue != "" {
		subject = r.names.Subject(queue)
	}
	request, err := json.Marshal(map[string]any{"seq": max(from, 1), "next_by_subj": subject, "batch": count, "max_bytes": bytes})
	if err != nil {
		return nil, 0, err
	}
	if err := session.Conn.PublishRequest("$JS.API.DIRECT.GET."+r.names.Name(), inbox, request); err != nil {
		return nil, 0, r.explain("read", err)
	}
	last, read := "0", 0
	for {
		msg, err := subscription.NextMsgWithContext(ctx)
		if errors.Is(err, nats.ErrNoResponders) {
			// Nothing was appended yet, or the stream is unavailable.
			if _, _, err := r.State(ctx); err != nil {
				return nil, 0, err
			}
		}
		if err != nil {
			return nil, 0, r.explain("read", err)
		}
		// Each message names the one before it.
		if before := msg.Header.Get("Nats-Last-Sequence"); before != "" && before != last {
			return nil, 0, r.explain("read", fmt.Errorf("%w: messages were lost in transit", ErrUnavailable))
		}
		switch status := msg.Header.Get("Status"); status {
		case "":
		case "404":
			return nil, 0, nil
		case "204":
			if msg.Header.Get("Nats-Num-Pending") != "0" && last != "0" {
				next, err = strconv.ParseUint(last, 10, 64)
				next++
			}
			return messages, next, err
		default:
			return nil, 0, r.explain("read", fmt.Errorf("%w: status %s %s", ErrUnavailable, status, msg.Header.Get("Description")))
		}
		last = msg.Header.Get("Nats-Sequence")
		sequence, err := strconv.ParseUint(last, 10, 64)
		if err != nil {
			return nil, 0, r.explain("read", err)
		}
		stored, err := time.Parse(time.RFC3339Nano, msg.Header.Get("Nats-Time-Stamp"))
		if err != nil {
			return nil, 0, r.explain("read", err)
		}
		m, err := r.message(msg.Header.Get("Nats-Subject"), sequence, stored, msg.Data)
		if err != nil {
			r.log.logger.Error(err, "Skipped unreadable message")
			continue
		}
		messages = append(messages, m)
		for _, record := range m.Records {
			read += len(record)
		}
		// The server counts compressed bytes.
		if pending := msg.Header.Get("Nats-Num-Pending"); read >= bytes && pending != "" && pending != "0" {
			return messages, sequence + 1, nil
		}
	}
}

// Delete deletes a message. It returns ErrNotFound if it does not exist.
func (r *Retained) Delete(ctx context.Context, sequence uint64) error {
	// A sequence that was never assigned is an error of the request.
	return r.request(ctx, "STREAM.MSG.DELETE", map[string]any{"seq": sequence, "no_erase": true}, nil)
}

// Purge deletes the messages before a sequence, or all if it is 0, of one queue, or of all queues if it is empty. It returns the number
// of deleted messages.
func (r *Retained) Purge(ctx context.Context, queue string, before uint64) (uint64, error) {
	request := map[string]any{}
	if before > 0 {
		request["seq"] = before
	}
	if queue != "" {
		request["filter"] = r.names.Subject(queue)
	}
	var response struct {
		Purged uint64 `json:"purged"`
	}
	err := r.request(ctx, "STREAM.PURGE", request, &response)
	return response.Purged, err
}

// DeleteStream deletes the stream with its messages. It succeeds if it does not exist.
func (r *Retained) DeleteStream(ctx context.Context) error {
	if err := r.request(ctx, "STREAM.DELETE", nil, nil); err != nil && !errors.Is(err, ErrNotFound) {
		return err
	}
	r.log.mu.Lock()
	defer r.log.mu.Unlock()
	delete(r.log.retained, r.id)
	r.log.server.Streams.Untrack(r.names.Name())
	return nil
}

// request sends a request of the JetStream API about the stream.
func (r *Retained) request(ctx context.Context, api string, body, response any) error {
	session, ctx, cancel, err := r.log.server.Request(ctx)
	if err != nil {
		return r.explain(api, err)
	}
	defer cancel()
	var data []byte
	if body != nil {
		if data, err = json.Marshal(body); err != nil {
			return err
		}
	}
	msg, err := session.Conn.RequestWithContext(ctx, "$JS.API."+api+"."+r.names.Name(), data)
	if err != nil {
		return r.explain(api, err)
	}
	var failed struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &failed); err != nil {
		return r.explain(api, err)
	}
	if failed.Error != nil {
		return r.explain(api, failed.Error)
	}
	if response == nil {
		return nil
	}
	return json.Unmarshal(msg.Data, response)
}

// explain adds the failed request to an error, which wraps ErrNotFound if the stream or the message does not exist.
func (r *Retained) explain(api string, err error) error {
	action := fmt.Sprintf("%s of stream '%s'", strings.ToLower(api), r.id)
	var failed *jetstream.APIError
	switch {
	case errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnavailable):
		return fmt.Errorf("event log: %s: %w", action, err)
	case errors.As(err, &failed) && server.IsNotFound(failed):
		return fmt.Errorf("event log: %s: %w: %w", action, ErrNotFound, err)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, nats.ErrNoResponders), errors.Is(err, nats.ErrTimeout):
		return fmt.Errorf("event log: %s: %w: %w", action, ErrUnavailable, err)
	}
	return r.log.server.Explain(action, err)
}

package simulation

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats-server/v2/server/ats"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// modelHistories is the number of random sequences of operations that TestModel compares.
	modelHistories = 25
	modelAckWait   = 3 * time.Second
	modelMaxBytes  = 4 << 10
)

// TestModel runs the same random operations on the simulated server and on a real one, and compares what a client observes.
func TestModel(t *testing.T) {
	// The server has a goroutine that must not begin in a bubble of testing/synctest.
	ats.Register()
	defer ats.Unregister()
	for s := range uint64(modelHistories) {
		t.Run(fmt.Sprint("seed=", s), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				simulated := newNATSServer(newNetwork(chance{s}))
				dial := dialer(func(string, string) (net.Conn, error) {
					return simulated.network.connect("client", serverAddress, true)
				})
				have := operate(t, chance{s}, nats.SetCustomDialer(dial))
				simulated.crash()
				real, err := server.NewServer(&server.Options{DontListen: true, NoSigs: true, NoLog: true, JetStream: true, StoreDir: t.TempDir(), DisableJetStreamBanner: true})
				if err != nil {
					t.Fatal(err)
				}
				real.Start()
				want := operate(t, chance{s}, nats.InProcessServer(real))
				real.Shutdown()
				real.WaitForShutdown()
				<-time.After(time.Minute)
				if diff := cmp.Diff(want, have); diff != "" {
					t.Errorf("the model observes (-real +simulated):\n%s", diff)
				}
			})
		})
	}
}

type dialer func(network, address string) (net.Conn, error)

// Dial implements nats.CustomDialer.
func (d dialer) Dial(network, address string) (net.Conn, error) { return d(network, address) }

// operator runs random operations and records its observations.
type operator struct {
	chance
	t        *testing.T
	conn     *nats.Conn
	js       jetstream.JetStream
	choices  int
	observed []string
	// pulled are the messages that were received.
	pulled []*nats.Msg
}

func operate(t *testing.T, c chance, option nats.Option) []string {
	t.Helper()
	conn, err := nats.Connect("nats://"+serverAddress, option, nats.Timeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	o := &operator{chance: c, t: t, conn: conn, js: js}
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "S", Subjects: []string{"S.>"}, Retention: jetstream.WorkQueuePolicy, Discard: jetstream.DiscardNew, MaxBytes: modelMaxBytes, AllowAtomicPublish: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 60 {
		o.operate()
		// No work of the operation is in progress at the next one.
		<-time.After(50 * time.Millisecond)
	}
	return o.observed
}

func (o *operator) roll(n int) int {
	o.choices++
	return int(o.below(int64(n), o.choices))
}

func (o *operator) observe(format string, args ...any) {
	o.observed = append(o.observed, fmt.Sprintf(format, args...))
}

// operate runs one operation.
func (o *operator) operate() {
	queue := []string{"a", "b"}[o.roll(2)]
	switch o.roll(12) {
	case 0, 1, 2, 3:
		o.publish(queue)
	case 4, 5, 6:
		o.pull(queue)
	case 7, 8:
		o.settle()
	case 9:
		wait := []time.Duration{200 * time.Millisecond, modelAckWait + time.Second}[o.roll(2)]
		o.observe("wait %s", wait)
		<-time.After(wait)
	case 10:
		o.info()
	case 11:
		if o.roll(3) == 0 {
			stream, err := o.js.Stream(o.t.Context(), "S")
			if err == nil {
				err = stream.Purge(o.t.Context(), jetstream.WithPurgeSubject("S."+queue))
			}
			o.observe("purge %s: %v", queue, err)
		} else {
			o.observe("delete consumer %s: %v", queue, o.js.DeleteConsumer(o.t.Context(), "S", queue))
		}
	}
}

// publish publishes a message, or an atomic batch.
func (o *operator) publish(queue string) {
	n := 1 + o.roll(2)*o.roll(4)
	for i := 1; i <= n; i++ {
		msg := &nats.Msg{Subject: "S." + queue, Data: []byte(strings.Repeat("x", 1+o.roll(900))), Header: nats.Header{}}
		if n > 1 {
			msg.Header.Set("Nats-Batch-Id", fmt.Sprint("batch", len(o.observed)))
			msg.Header.Set("Nats-Batch-Sequence", fmt.Sprint(i))
		}
		if i < n {
			if err := o.conn.PublishMsg(msg); err != nil {
				o.t.Fatal(err)
			}
			continue
		}
		if n > 1 {
			msg.Header.Set("Nats-Batch-Commit", "1")
		}
		response, err := o.conn.RequestMsgWithContext(o.t.Context(), msg)
		if err != nil {
			o.t.Fatal(err)
		}
		var ack struct {
			Seq   uint64
			Error *failure
		}
		if err := json.Unmarshal(response.Data, &ack); err != nil {
			o.t.Fatal(err)
		}
		if ack.Error != nil {
			o.observe("publish %d to %s: %d %s", n, queue, ack.Error.ErrorCode, ack.Error.Description)
		} else {
			o.observe("publish %d to %s: %d", n, queue, ack.Seq)
		}
	}
}

// pull requests messages.
func (o *operator) pull(queue string) {
	config := jetstream.ConsumerConfig{
		Durable: queue, FilterSubject: "S." + queue, AckPolicy: jetstream.AckExplicitPolicy, AckWait: modelAckWait, MaxDeliver: -1, MaxAckPending: -1,
	}
	if queue == "b" {
		config.MaxAckPending = 1
	}
	if _, err := o.js.CreateOrUpdateConsumer(o.t.Context(), "S", config); err != nil {
		o.t.Fatal(err)
	}
	inbox := o.conn.NewInbox()
	sub, err := o.conn.SubscribeSync(inbox)
	if err != nil {
		o.t.Fatal(err)
	}
	n, bytes := 1+o.roll(4), 500+o.roll(3000)
	if queue == "a" {
		// The server's timers may fire late, so the order of redeliveries varies if several messages may be unacknowledged. All of
		// them are compared.
		n, bytes = 100, 1<<20
	}
	request := fmt.Sprintf(`{"batch":%d,"max_bytes":%d,"expires":%d}`, n, bytes, 100*time.Millisecond)
	if err := o.conn.PublishRequest("$JS.API.CONSUMER.MSG.NEXT.S."+queue, inbox, []byte(request)); err != nil {
		o.t.Fatal(err)
	}
	o.observe("pull %d of %d bytes from %s", n, bytes, queue)
	first := len(o.observed)
	defer func() {
		slices.Sort(o.observed[first:])
		slices.SortFunc(o.pulled, func(a, b *nats.Msg) int { return strings.Compare(a.Reply, b.Reply) })
	}()
	for got := 0; got < n; got++ {
		msg, err := sub.NextMsgWithContext(o.t.Context())
		if err != nil {
			o.t.Fatal(err)
		}
		if status := msg.Header.Get("Status"); status != "" {
			o.observe("%s %s", status, msg.Header.Get("Description"))
			break
		}
		meta, err := msg.Metadata()
		if err != nil {
			o.t.Fatal(err)
		}
		o.pulled = append(o.pulled, msg)
		o.observe("sequence %d of %d bytes, delivery %d, %d behind", meta.Sequence.Stream, len(msg.Data), meta.NumDelivered, meta.NumPending)
	}
	if err := sub.Unsubscribe(); err != nil {
		o.t.Fatal(err)
	}
}

// settle acknowledges or rejects a message, or reports progress.
func (o *operator) settle() {
	if len(o.pulled) == 0 {
		return
	}
	i := o.roll(len(o.pulled))
	with := []string{"+ACK", "+ACK", "-NAK", `-NAK {"delay": 1000000000}`, "+WPI"}[o.roll(5)]
	meta, err := o.pulled[i].Metadata()
	if err != nil {
		o.t.Fatal(err)
	}
	o.observe("%s for delivery %d of %d", with, meta.NumDelivered, meta.Sequence.Stream)
	if err := o.conn.Publish(o.pulled[i].Reply, []byte(with)); err != nil {
		o.t.Fatal(err)
	}
	if with == "+ACK" {
		o.pulled = slices.Delete(o.pulled, i, i+1)
	}
}

// info observes the stream.
func (o *operator) info() {
	stream, err := o.js.Stream(o.t.Context(), "S")
	if err != nil {
		o.t.Fatal(err)
	}
	info, err := stream.Info(o.t.Context(), jetstream.WithSubjectFilter("S.>"))
	if err != nil {
		o.t.Fatal(err)
	}
	o.observe("%d messages of %d bytes by subject: %v", info.State.Msgs, info.State.Bytes, info.State.Subjects)
}

package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/flow"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// fixture is a broker with a log in memory and scripted endpoints, in virtual time.
type fixture struct {
	*testing.T
	*Broker

	log     *fakeLog
	session *session
	budget  *flow.Budget
	start   time.Time
	// letters is the dead letter store; nil drops events.
	letters DeadLetters

	mu sync.Mutex
	// mu guards the fields below.
	calls []*call
	// sent counts the attempts at each event by address.
	sent    map[string]int
	answers map[string]answer
	// responses replace answers with functions of the event's ID.
	responses map[string]func(id string, n int) (after time.Duration, r sender.Result)
	// absent are the objects that do not exist in the API.
	absent map[types.UID]bool
	// reports are the consumers whose health was reported, and when.
	reports []report
}

// answer is the behavior of an endpoint for attempt n, counted from 1 for each event: it returns after some time. Nil means 202 at once.
type answer func(n int) (after time.Duration, r sender.Result)

// call is an attempt that was made.
type call struct {
	id, url string
	at, end time.Duration
	event   *event.Event
	options sender.Attempt
	ok      bool
}

type report struct {
	key eventing.Key
	at  time.Duration
}

// stuck is longer than the duration of any test.
const stuck = 1000 * time.Hour

var (
	brokerKey  = eventing.Key{Kind: eventing.Broker, Namespace: "default", Name: "b"}
	channelKey = eventing.Key{Kind: eventing.Channel, Namespace: "default", Name: "c"}
)

// run runs a test in a fixture with the Broker brokerKey and the Channel channelKey, and ends it.
func run(t *testing.T, test func(w *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{T: t, log: newFakeLog(), budget: flow.NewBudget(256<<20, 16<<20), start: time.Now(), answers: map[string]answer{}, sent: map[string]int{}, absent: map[types.UID]bool{}}
		w.boot()
		w.begin()
		defer func() { w.Stop(time.Second) }()
		test(w)
	})
}

// boot creates a broker on the log.
func (w *fixture) boot() {
	w.session = w.log.open()
	w.Broker = New(klog.NewContext(w.Context(), logr.Discard()), Options{
		Log: w.session, Send: w.send, Clock: clock.RealClock{}, Budget: w.budget, DeadLetters: w.letters,
		Addresses: func(key eventing.Key) []string { return []string{"http://broker/" + string(key.Kind) + "/" + key.Name} },
		Exists: func(uid types.UID) bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			return !w.absent[uid]
		},
		HealthChanged: func(key eventing.Key) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reports = append(w.reports, report{key, time.Since(w.start)})
		},
	})
	for _, key := range []eventing.Key{brokerKey, channelKey} {
		w.must(w.SetStream(w.Context(), eventing.Stream{Key: key, UID: types.UID(key.Name)}))
	}
}

// begin starts the deliveries of the broker.
func (w *fixture) begin() { w.must(w.Broker.Start(w.Context())) }

func (w *fixture) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

// trigger returns a Trigger of brokerKey without retries, with a subscriber at http://<name>/.
func trigger(name string, change ...func(*eventing.Consumer)) eventing.Consumer {
	c := eventing.Consumer{
		Key: eventing.Key{Kind: eventing.Trigger, Namespace: "default", Name: name}, UID: types.UID("uid-" + name),
		Stream: brokerKey, StreamUID: types.UID(brokerKey.Name), Subscriber: eventing.Endpoint{URL: "http://" + name + "/"},
	}
	for _, do := range change {
		do(&c)
	}
	return c
}

// subscription is like trigger for a Subscription of channelKey.
func subscription(name string, change ...func(*eventing.Consumer)) eventing.Consumer {
	c := trigger(name, change...)
	c.Key.Kind, c.Stream, c.StreamUID = eventing.Subscription, channelKey, types.UID(channelKey.Name)
	return c
}

func withDelivery(d eventing.Delivery) func(*eventing.Consumer) {
	return func(c *eventing.Consumer) { c.Delivery = d }
}

func ordered(c *eventing.Consumer) { c.Ordered = true }

// withDeadLetter sets the dead letter sink to http://dead/.
func withDeadLetter(c *eventing.Consumer) { c.DeadLetter.URL = "http://dead/" }

func withReply(c *eventing.Consumer) { c.Reply.URL = "http://reply/" }

func (w *fixture) set(consumers ...eventing.Consumer) {
	w.Helper()
	for _, c := range consumers {
		w.must(w.SetConsumer(w.Context(), c))
	}
}

func newEvent(id string, attributes ...event.Attribute) *event.Event {
	return &event.Event{
		Attributes: append([]event.Attribute{{Name: event.ID, Value: id}, {Name: event.Source, Value: "/s"}, {Name: event.EventType, Value: "t"}}, attributes...),
		Data:       []byte("data of " + id),
	}
}

func ttl(n string) event.Attribute {
	return event.Attribute{Name: event.TTL, Value: n, Type: event.Integer}
}

// accept makes a stream accept events with some ids, one after the other.
func (w *fixture) accept(to eventing.Key, ids ...string) {
	w.Helper()
	for _, id := range ids {
		w.must(w.Accept(w.Context(), to, []*event.Event{newEvent(id)}))
	}
}

// after advances the time.
func (w *fixture) after(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
	synctest.Wait()
}

// answer sets the behaviour of the endpoint with a consumer's name.
func (w *fixture) answer(name string, a answer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answers["http://"+name+"/"] = a
}

// respond sets the behavior of the endpoint at a URL for each event, by its ID.
func (w *fixture) respond(url string, f func(id string, n int) (time.Duration, sender.Result)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.responses == nil {
		w.responses = map[string]func(string, int) (time.Duration, sender.Result){}
	}
	w.responses[url] = f
}

// status returns the result of an attempt that was answered.
func status(code int) sender.Result {
	r := sender.Result{Code: code}
	if code/100 != 2 {
		r.Err = fmt.Errorf("POST http://x/: %d", code)
		r.Retryable = code/100 == 5 || code == 404 || code == 429
	}
	return r
}

// always answers with a status at once.
func always(code int) answer {
	return func(int) (time.Duration, sender.Result) { return 0, status(code) }
}

// failing answers the first n attempts at an event with a status, and others with 202.
func failing(n, code int) answer {
	return func(attempt int) (time.Duration, sender.Result) {
		if attempt <= n {
			return 0, status(code)
		}
		return 0, status(202)
	}
}

// slow answers 202 after some time.
func slow(d time.Duration) answer {
	return func(int) (time.Duration, sender.Result) { return d, status(202) }
}

// unreachable is an endpoint that cannot be reached.
func unreachable(int) (time.Duration, sender.Result) {
	return 0, sender.Result{Err: errors.New("POST http://x/: connection refused"), Retryable: true}
}

// replying answers with an event.
func replying(e *event.Event) answer {
	return func(int) (time.Duration, sender.Result) { return 0, sender.Result{Code: 200, Reply: e} }
}

// send implements Options.Send.
func (w *fixture) send(ctx context.Context, e *event.Event, to eventing.Endpoint, o sender.Attempt) sender.Result {
	id, _ := e.Get(event.ID)
	c := &call{id: id, url: to.URL, at: time.Since(w.start), event: e, options: o}
	w.mu.Lock()
	w.sent[id+" "+to.URL]++
	n := w.sent[id+" "+to.URL]
	w.calls = append(w.calls, c)
	a, respond := w.answers[to.URL], w.responses[to.URL]
	w.mu.Unlock()
	if to.URL == "" {
		w.Errorf("an attempt was made at no address, with event %s", id)
	}
	var after time.Duration
	result := status(202)
	if a != nil {
		after, result = a(n)
	}
	if respond != nil {
		after, result = respond(id, n)
	}
	if after > 0 {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			result = sender.Result{Err: ctx.Err(), Retryable: true}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	c.ok, c.end = result.Err == nil, time.Since(w.start)
	return result
}

// attempts returns the attempts at the endpoint of a consumer's name.
func (w *fixture) attempts(name string) (calls []call) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.calls {
		if c.url == "http://"+name+"/" {
			calls = append(calls, *c)
		}
	}
	return calls
}

// received returns the ids of the events that an endpoint accepted, in order.
func (w *fixture) received(name string) string {
	var ids []string
	for _, c := range w.attempts(name) {
		if c.ok {
			ids = append(ids, c.id)
		}
	}
	return strings.Join(ids, " ")
}

// tried returns the ids of the events of all attempts at an endpoint.
func (w *fixture) tried(name string) string {
	var ids []string
	for _, c := range w.attempts(name) {
		ids = append(ids, c.id)
	}
	return strings.Join(ids, " ")
}

func (w *fixture) expect(what, have, want string) {
	w.Helper()
	if have != want {
		w.Errorf("%s: %q, want %q", what, have, want)
	}
}

// expectReceived fails unless endpoints accepted exactly the events with some ids, in any order.
func (w *fixture) expectReceived(want map[string]string) {
	w.Helper()
	for _, name := range slices.Sorted(maps.Keys(want)) {
		have := strings.Fields(w.received(name))
		slices.Sort(have)
		w.expect(name+" took", strings.Join(have, " "), want[name])
	}
}

// times returns the times of the attempts at an endpoint.
func (w *fixture) times(name string) (times []time.Duration) {
	for _, c := range w.attempts(name) {
		times = append(times, c.at)
	}
	return times
}

func (w *fixture) expectTimes(name string, want ...time.Duration) {
	w.Helper()
	if have := w.times(name); !slices.Equal(have, want) {
		w.Errorf("attempts at %s: %v, want %v", name, have, want)
	}
}

// count returns a consumer's counts.
func (w *fixture) count(key eventing.Key) *consumerCounts {
	w.Helper()
	found, ok := w.consumers.Load(key)
	if !ok {
		w.Fatalf("%s does not exist", key)
	}
	return found.(*consumer).counts
}

// numbers returns the ids from 0 to n-1, all of the same length.
func numbers(n int) []string {
	ids := make([]string, n)
	for i := range ids {
		ids[i] = fmt.Sprintf("%04d", i)
	}
	return ids
}

// restart stops the broker gracefully, and starts another on the same log with the same consumers.
func (w *fixture) restart() {
	w.replace(func() {
		w.Stop(time.Second)
		w.session.close()
	})
}

// crash ends the broker like the kill of its process, and starts another on the same log with the same consumers.
func (w *fixture) crash() {
	w.replace(func() {
		w.session.close()
		w.Stop(0)
	})
}

func (w *fixture) replace(end func()) {
	w.Helper()
	var have []eventing.Consumer
	w.consumers.Range(func(_, c any) bool {
		have = append(have, *c.(*consumer).config.Load())
		return true
	})
	end()
	w.boot()
	w.set(have...)
	w.begin()
}

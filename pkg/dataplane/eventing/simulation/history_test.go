package simulation

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

var (
	streamKey  = eventing.Key{Kind: eventing.Broker, Namespace: "default", Name: "orders"}
	foreignKey = eventing.Key{Kind: eventing.Broker, Namespace: "other", Name: "orders"}
)

// history is a random sequence of events and faults.
type history struct {
	chance
	network *network
	server  *natsServer
	start   time.Time
	// replicas is the number of servers that store each stream, by the configuration.
	replicas int
	// rough histories crash processes and servers and cut connections, in which events may end more than once.
	rough    bool
	stopping sync.WaitGroup
	// shared are the streams that two replicas owned at a time, or whose owner ended while the log rejected records: events may
	// have been delivered by both.
	shared sets.Set[eventing.Key]
	// choices counts the choices of the sequence, posts the requests to a Broker.
	choices, posts int

	streams  []eventing.Stream
	triggers []*trigger
	// processes are the running replicas by name, ended all others. runs counts the starts.
	ended []*replica
	runs  int
	// events are all that were sent.
	events []*sent

	mu sync.Mutex
	// mu guards the fields below.
	processes map[string]*replica
	// owners are the names of the replicas that own the streams.
	owners   map[eventing.Key]string
	attempts []*attempt
	drops    map[string]int
	// silent are the endpoints that do not answer.
	silent map[string]bool
	counts map[string]int
	// failures are the violated guarantees.
	failures []string
	trace    []string
	absent   sets.Set[types.UID]
}

// trigger is a Trigger that exists until the end, unless it is temporary.
type trigger struct {
	eventing.Consumer
	// typed is true if the Trigger filters by type.
	typed, temporary bool
	// reordered is true once the order was changed.
	reordered bool
}

// sent is an event that was sent to a Broker.
type sent struct {
	id, kind string
	to       eventing.Key
	accepted bool
}

// attempt is an attempt at an endpoint.
type attempt struct {
	id, url    string
	begin, end time.Duration
	ok         bool
}

// simulate runs the history of a seed, in the caller's synctest bubble. It returns the violated guarantees, and its trace.
func simulate(seed uint64) (failures, trace []string) {
	// The NATS client takes the jitter of its reconnects from there.
	rand.Seed(int64(seed)) //nolint:staticcheck // required to make it repeatable
	before := len(goroutines())
	h := &history{
		chance: chance{seed}, start: time.Now(), drops: map[string]int{}, silent: map[string]bool{}, counts: map[string]int{},
		processes: map[string]*replica{}, owners: map[eventing.Key]string{}, absent: sets.New[types.UID](), shared: sets.New[eventing.Key](),
	}
	h.network = newNetwork(h.chance)
	h.server = newNATSServer(h.network)
	h.rough, h.replicas = seed%2 == 0, 1+2*h.roll(2)
	h.run()
	h.check()
	if left := leftovers(before); left != "" {
		h.fail("goroutines did not end:\n%s", left)
	}
	return h.failures, h.sortedTrace()
}

// leftovers returns the goroutines if more than before run after some time.
func leftovers(before int) string {
	var all []string
	for range 10 {
		<-time.After(time.Minute)
		synctest.Wait()
		if all = goroutines(); len(all) <= before {
			return ""
		}
	}
	return strings.Join(all, "\n\n")
}

// goroutines returns the stacks of the bubble's goroutines. Outside, the NATS server of TestModel measures its use of the processor
// every second of real time, also if it was never started.
func goroutines() []string {
	stacks := make([]byte, 64<<10)
	n := runtime.Stack(stacks, true)
	for ; n == len(stacks); n = runtime.Stack(stacks, true) {
		stacks = make([]byte, 2*len(stacks))
	}
	return slices.DeleteFunc(strings.Split(string(stacks[:n]), "\n\n"), func(stack string) bool {
		header, _, _ := strings.Cut(stack, "\n")
		return !strings.Contains(header, "synctest bubble")
	})
}

// roll returns a number below n.
func (h *history) roll(n int) int {
	h.choices++
	return int(h.below(int64(n), "roll", h.choices))
}

// pause waits for a random time.
func (h *history) pause(low, high time.Duration) {
	h.choices++
	<-time.After(h.between(low, high, "pause", h.choices))
}

// note adds a line to the trace.
func (h *history) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.trace = append(h.trace, fmt.Sprintf("%14s ", time.Since(h.start))+fmt.Sprintf(format, args...))
}

// sortedTrace returns the trace, in which lines of the same time are in the order of their text.
func (h *history) sortedTrace() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	sort := slices.Clone(h.trace)
	slices.SortStableFunc(sort, func(a, b string) int {
		if a[:14] == b[:14] {
			return strings.Compare(a, b)
		}
		return 0
	})
	return sort
}

// fail records a violated guarantee.
func (h *history) fail(format string, args ...any) {
	h.note("WRONG: "+format, args...)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.failures = append(h.failures, fmt.Sprintf(format, args...))
}

func (h *history) dropped(consumer string) {
	h.note("%s drops", consumer)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.drops[consumer]++
}

// existing returns the UIDs of all objects.
func (h *history) existing() sets.Set[types.UID] {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := sets.New[types.UID]()
	for _, s := range h.streams {
		all.Insert(s.UID)
	}
	for _, t := range h.triggers {
		all.Insert(t.UID)
	}
	return all.Difference(h.absent)
}

// running returns the running process of a replica, or nil.
func (h *history) running(name string) *replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.processes[name]
}

func (h *history) names() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.processes))
}

// eventually repeats an action of a controller until it succeeds.
func (h *history) eventually(what string, do func() error) {
	var err error
	for range 200 {
		if err = do(); err == nil {
			return
		}
		<-time.After(500 * time.Millisecond)
	}
	h.fail("%s: %v", what, err)
}

// configure creates the streams and Triggers of the history.
func (h *history) configure() {
	h.streams = []eventing.Stream{{Key: streamKey, UID: "stream"}, {Key: foreignKey, UID: "foreign"}}
	all := []func(*trigger){
		func(t *trigger) { t.Delivery = linear(3, time.Second) },
		func(t *trigger) {
			t.Delivery, t.DeadLetter, t.NoDeadLetterStore = linear(2, 300*time.Millisecond), eventing.Endpoint{}, true
		},
		func(t *trigger) { t.Delivery, t.Ordered = linear(2, time.Second), true },
		func(t *trigger) {
			t.Delivery = eventing.Delivery{Retry: 5, Policy: eventing.BackoffExponential, Backoff: 200 * time.Millisecond, MaxBackoff: 2 * time.Second}
			t.typed, t.Attributes = true, map[string]string{"type": "x"}
		},
		func(t *trigger) { t.Delivery, t.temporary = linear(5, time.Second), true },
		func(t *trigger) { t.Delivery, t.DeadLetter = linear(2, 300*time.Millisecond), eventing.Endpoint{} },
	}
	names := []string{"sink", "drops", "ordered", "typed", "temporary", "stored"}
	some := 1 + h.roll(1<<len(all)-1)
	for i, change := range all {
		if some&(1<<i) != 0 {
			h.triggers = append(h.triggers, newTrigger(names[i], streamKey, "stream", change))
		}
	}
	h.triggers = append(h.triggers, newTrigger("foreign", foreignKey, "foreign", all[0]))
	for _, t := range h.triggers {
		for _, endpoint := range []string{t.Subscriber.URL, t.DeadLetter.URL} {
			if endpoint != "" {
				host := strings.TrimSuffix(strings.TrimPrefix(endpoint, "http://"), "/")
				h.network.listen(host+":80", func(c net.Conn) { h.answer(endpoint, c) })
			}
		}
	}
}

func linear(retry int, backoff time.Duration) eventing.Delivery {
	return eventing.Delivery{Retry: retry, Policy: eventing.BackoffLinear, Backoff: backoff, Timeout: 2 * time.Second}
}

func newTrigger(name string, stream eventing.Key, uid types.UID, change func(*trigger)) *trigger {
	t := &trigger{Consumer: eventing.Consumer{
		Key: eventing.Key{Kind: eventing.Trigger, Namespace: stream.Namespace, Name: name}, UID: types.UID("uid-" + name), Stream: stream, StreamUID: uid,
		Subscriber: eventing.Endpoint{URL: "http://" + name + ".test/"}, DeadLetter: eventing.Endpoint{URL: "http://dead-" + name + ".test/"},
	}}
	change(t)
	t.Delivery.Timeout = 2 * time.Second
	return t
}

// run runs the history: events are sent while faults begin and end. It returns when all deliveries have ended.
func (h *history) run() {
	h.configure()
	for _, s := range h.streams {
		h.owners[s.Key] = "a"
	}
	for _, name := range []string{"a", "b"}[:1+h.roll(2)] {
		h.boot(name)
	}
	for range 6 + h.roll(8) {
		h.post()
		h.pause(time.Millisecond, 400*time.Millisecond)
		if h.roll(3) == 0 {
			h.step()
		}
	}
	// All faults end by themselves within this time.
	<-time.After(15 * time.Second)
	for _, t := range h.triggers {
		if t.temporary {
			h.remove(t)
		}
	}
	for range 10 {
		<-time.After(30 * time.Second)
		h.refresh()
	}
}

// boot starts a replica, and makes it serve the streams that it owns.
func (h *history) boot(name string) {
	h.runs++
	host := fmt.Sprintf("%s%d", name, h.runs)
	var r *replica
	h.eventually("start "+name, func() (err error) {
		r, err = newReplica(h, name, host)
		return err
	})
	h.locked(&h.mu, func() { h.processes[name] = r })()
	h.note("%s started as %s", name, host)
	// One of several replicas acquires its streams after deliveries have started, a single one before.
	several := h.roll(2) == 0
	if several {
		h.eventually("start deliveries", func() error { return r.broker.Start(context.Background()) })
	}
	for _, s := range h.streams {
		if h.owner(s.Key) == name {
			h.acquire(r, s, several)
		}
	}
	if !several {
		h.eventually("start deliveries", func() error { return r.broker.Start(context.Background()) })
	}
}

// owner returns the name of the replica that owns a stream.
func (h *history) owner(key eventing.Key) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.owners[key]
}

// owns reports whether a process accepts events for a stream.
func (h *history) owns(r *replica, key eventing.Key) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return r.owned.Has(key)
}

// acquire makes a replica serve a stream: with all its consumers at once, or one after the other.
func (h *history) acquire(r *replica, s eventing.Stream, atOnce bool) {
	ctx := context.Background()
	var consumers []eventing.Consumer
	for _, t := range h.triggers {
		if t.Stream == s.Key {
			consumers = append(consumers, t.Consumer)
		}
	}
	if atOnce {
		h.eventually("acquire "+s.Key.String(), func() error {
			_, err := r.broker.AcquireStream(ctx, s, consumers)
			return err
		})
	} else {
		h.eventually("set "+s.Key.String(), func() error { return r.broker.SetStream(ctx, s) })
		for _, c := range consumers {
			h.eventually("set "+c.Key.String(), func() error { return r.broker.SetConsumer(ctx, c) })
		}
	}
	h.locked(&h.mu, func() { r.owned.Insert(s.Key) })()
}

// move moves a stream to another replica. For some time none accepts its events, or both do.
func (h *history) move(s eventing.Stream, to string) {
	from, next := h.running(h.owner(s.Key)), h.running(to)
	if from == next {
		return
	}
	release := func() {
		h.checkStorable()
		h.locked(&h.mu, func() { from.owned.Delete(s.Key) })()
		from.broker.ReleaseStream(s.Key)
	}
	both := h.roll(2) == 0
	h.note("%s moves from %s to %s, both=%t", s.Key, from.name, to, both)
	if both {
		h.shared.Insert(s.Key)
	} else {
		release()
		h.pause(0, time.Second)
	}
	h.locked(&h.mu, func() { h.owners[s.Key] = to })()
	h.acquire(next, s, true)
	if both {
		h.pause(0, time.Second)
		h.post()
		release()
	}
	h.refresh()
}

// checkStorable records that the owner of streams changes, or restarts, while the log rejects records: ends that are not
// acknowledged may be repeated.
func (h *history) checkStorable() {
	h.server.mu.Lock()
	defer h.server.mu.Unlock()
	if h.server.full || h.server.diskFails {
		h.shared.Insert(streamKey, foreignKey)
	}
}

// refresh makes the owners look for events in the log, as they do from time to time.
func (h *history) refresh() {
	for _, s := range h.streams {
		if r := h.running(h.owner(s.Key)); r != nil {
			if err := r.broker.Refresh(context.Background(), s.Key); err != nil {
				h.note("%s: %v", r.name, err)
			}
		}
	}
}

// end removes a replica from the running ones.
func (h *history) end(name string) *replica {
	h.mu.Lock()
	defer h.mu.Unlock()
	r := h.processes[name]
	delete(h.processes, name)
	h.ended = append(h.ended, r)
	return r
}

// post sends events to a Broker.
func (h *history) post() {
	h.posts++
	to := streamKey
	if h.roll(8) == 0 {
		to = foreignKey
	}
	kind := []string{"x", "y"}[h.roll(2)]
	var all []*sent
	var body []string
	for j := range 1 + h.roll(3) {
		e := &sent{id: fmt.Sprintf("%03d-%d", h.posts, j), kind: kind, to: to}
		all = append(all, e)
		body = append(body, fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/s","type":%q,"data":{}}`, e.id, e.kind))
	}
	var owners []*replica
	for _, name := range h.names() {
		if r := h.running(name); h.owns(r, to) {
			owners = append(owners, r)
		}
	}
	r := owners[h.roll(len(owners))]
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://broker/"+to.Namespace+"/"+to.Name, strings.NewReader("["+strings.Join(body, ",")+"]"))
	if err != nil {
		panic(err)
	}
	request.Header.Set("Content-Type", "application/cloudevents-batch+json")
	recorder := httptest.NewRecorder()
	r.ingress.ServeHTTP(recorder, request)
	for _, e := range all {
		e.accepted = recorder.Code == http.StatusAccepted
	}
	h.events = append(h.events, all...)
	h.note("%s answers %d to %d events %s for %s of type %s", r.name, recorder.Code, len(all), all[0].id, to.Namespace, kind)
}

// during injects a fault that ends after some time.
func (h *history) during(what string, longest time.Duration, begin, end func()) {
	h.choices++
	d := h.between(10*time.Millisecond, longest, "fault", h.choices)
	h.note("%s for %s", what, d)
	begin()
	h.stopping.Go(func() {
		<-time.After(d)
		end()
		h.note("end of: %s", what)
	})
}

func (h *history) locked(mu *sync.Mutex, do func()) func() {
	return func() {
		mu.Lock()
		defer mu.Unlock()
		do()
	}
}

// step injects a random fault or change.
func (h *history) step() {
	t := h.triggers[h.roll(len(h.triggers))]
	names := h.names()
	name := names[h.roll(len(names))]
	n := 9
	if h.rough {
		n = 15
	}
	switch h.roll(n) {
	case 0:
		h.during("log full", 3*time.Second, h.locked(&h.server.mu, func() { h.server.full = true }), h.locked(&h.server.mu, func() { h.server.full = false }))
	case 1:
		h.during("syncs fail", 3*time.Second, h.locked(&h.server.mu, func() { h.server.diskFails = true }), h.locked(&h.server.mu, func() { h.server.diskFails = false }))
	case 2, 3:
		url := t.Subscriber.URL
		if h.roll(3) == 0 && t.DeadLetter.URL != "" {
			url = t.DeadLetter.URL
		}
		h.during("no answer from "+url, 5*time.Second, h.locked(&h.mu, func() { h.silent[url] = true }), h.locked(&h.mu, func() { h.silent[url] = false }))
	case 4:
		h.unresolve(t)
	case 5:
		h.reorder(t)
	case 6:
		h.note("%s restarts", name)
		h.checkStorable()
		h.end(name).stop()
		h.boot(name)
	case 7:
		h.changeMembers(name)
	case 8:
		if t.temporary {
			h.remove(t)
			h.add(t)
		}
	case 9, 10:
		h.note("%s is killed", name)
		h.end(name).kill()
		h.pause(time.Millisecond, 3*time.Second)
		h.boot(name)
	case 11:
		h.note("the connections of %s are reset", name)
		h.network.reset(h.running(name).host)
	case 12:
		h.note("%s is isolated", name)
		h.choices++
		h.network.isolate(h.running(name).host, h.between(10*time.Millisecond, 12*time.Second, "isolated", h.choices))
	case 13:
		h.during("NATS down", 4*time.Second, h.server.crash, h.server.start)
	case 14:
		// The server may lose the deletion.
		if i := slices.IndexFunc(h.triggers, func(t *trigger) bool { return t.temporary }); i >= 0 {
			h.remove(h.triggers[i])
			h.during("NATS down", time.Second, h.server.crash, h.server.start)
			h.add(h.triggers[i])
		}
	}
}

// unresolve makes the address of an endpoint unknown for some time.
func (h *history) unresolve(t *trigger) {
	h.note("%s is unresolved", t.Key)
	unresolved := t.Consumer
	if h.roll(2) == 0 || t.DeadLetter.URL == "" {
		unresolved.Subscriber = eventing.Endpoint{Unresolved: true}
	} else {
		unresolved.DeadLetter = eventing.Endpoint{Unresolved: true}
	}
	h.set(&unresolved)
	h.pause(time.Millisecond, 5*time.Second)
	h.set(&t.Consumer)
	h.note("%s is resolved", t.Key)
}

// reorder changes the order of the deliveries to a Trigger, except to the one whose order is checked.
func (h *history) reorder(t *trigger) {
	if t.Key.Name == "ordered" {
		return
	}
	t.Ordered, t.reordered = !t.Ordered, true
	h.note("%s: ordered=%t", t.Key, t.Ordered)
	h.set(&t.Consumer)
}

// set passes a Trigger to the owner of its stream.
func (h *history) set(c *eventing.Consumer) {
	r := h.running(h.owner(c.Stream))
	h.eventually("set "+c.Key.String(), func() error { return r.broker.SetConsumer(context.Background(), *c) })
}

// changeMembers adds a replica, or makes one leave.
func (h *history) changeMembers(name string) {
	other := string("ab"[1-strings.Index("ab", name)])
	if len(h.names()) == 1 {
		h.note("%s is added", other)
		h.boot(other)
		h.move(h.streams[h.roll(len(h.streams))], other)
		return
	}
	h.note("%s leaves", name)
	for _, s := range h.streams {
		h.move(s, other)
	}
	h.end(name).stop()
}

// remove deletes a temporary Trigger, add creates it again.
func (h *history) remove(t *trigger) {
	h.note("%s is deleted", t.Key)
	h.locked(&h.mu, func() { h.absent.Insert(t.UID) })()
	r := h.running(h.owner(t.Stream))
	h.eventually("remove "+t.Key.String(), func() error { return r.broker.RemoveConsumer(context.Background(), t.Key) })
}

func (h *history) add(t *trigger) {
	h.locked(&h.mu, func() { t.UID += "+" })()
	h.note("%s is created", t.Key)
	h.set(&t.Consumer)
}

// stagger returns the delay of an attempt.
func (h *history) stagger(id, url string) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.counts["stagger "+url+id]++
	return h.between(0, 100*time.Microsecond, "stagger", id, url, h.counts["stagger "+url+id])
}

// begin records the start of an attempt.
func (h *history) begin(r *replica, id, url string) *attempt {
	h.note("%s sends %s to %s", r.name, id, url)
	h.mu.Lock()
	defer h.mu.Unlock()
	a := &attempt{id: id, url: url, begin: time.Since(h.start)}
	h.attempts = append(h.attempts, a)
	return a
}

func (h *history) finish(a *attempt, ok bool, code int) {
	h.note("%s to %s: %d, ok=%t", a.id, a.url, code, ok)
	h.mu.Lock()
	defer h.mu.Unlock()
	a.end, a.ok = time.Since(h.start), ok
}

// answer serves a connection of an endpoint: what it answers depends on the event and the number of the attempt.
func (h *history) answer(url string, c net.Conn) {
	defer c.Close()
	input := bufio.NewReader(c)
	for {
		request, err := http.ReadRequest(input)
		if err != nil {
			return
		}
		var e struct{ ID string }
		if err := json.NewDecoder(request.Body).Decode(&e); err != nil {
			return
		}
		id := e.ID
		h.mu.Lock()
		h.counts[url+id]++
		n, silent := h.counts[url+id], h.silent[url]
		h.mu.Unlock()
		about := []any{url, id, n}
		after := h.between(0, 50*time.Millisecond, append(about, "latency")...)
		if h.below(8, append(about, "late")...) == 0 {
			after = h.between(0, 2200*time.Millisecond, append(about, "late latency")...)
		}
		<-time.After(after)
		status := http.StatusAccepted
		switch kind := h.below(12, append(about, "status")...); {
		case silent, kind == 0:
			// The answer is lost.
			return
		case kind <= 4:
			status = []int{500, 503, 429, 400}[kind-1]
		}
		var response bytes.Buffer
		fmt.Fprintf(&response, "HTTP/1.1 %d X\r\nContent-Length: 0\r\n\r\n", status)
		if _, err := c.Write(response.Bytes()); err != nil {
			return
		}
	}
}

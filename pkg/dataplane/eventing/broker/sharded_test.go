package broker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/ingress"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/streams"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
)

// installation is a set of replicas on one log, with the membership that the test sets.
type installation struct {
	*fixture
	replicas map[string]*sharded

	mu sync.Mutex
	// cut are the replicas that cannot be reached. mu guards it.
	cut sets.Set[string]
	// subscribed are consumers that exist in the API, but that replicas have not observed yet. mu guards it.
	subscribed []eventing.Consumer
	// forwards is the number of requests with events that replicas forwarded. mu guards it.
	forwards int
}

// sharded is a replica.
type sharded struct {
	name    string
	view    *membership.View
	session *session
	broker  *Broker
	shards  *streams.Manager
	ingress *ingress.Handler
	peers   *http.ServeMux
}

// install runs a test with replicas that are all members for each other.
func install(t *testing.T, names []string, test func(i *installation)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{T: t, log: newFakeLog(), start: time.Now(), answers: map[string]answer{}, sent: map[string]int{}, absent: map[types.UID]bool{}}
		i := &installation{fixture: w, replicas: map[string]*sharded{}, cut: sets.New[string]()}
		for _, name := range names {
			i.add(name, names...)
		}
		defer func() {
			for _, r := range i.replicas {
				r.shards.Stop(time.Second)
			}
		}()
		test(i)
	})
}

// add starts a replica that observes some members.
func (i *installation) add(name string, seen ...string) *sharded {
	i.Helper()
	r := &sharded{name: name, view: membership.NewView(set(name, seen...)), session: i.log.open(), peers: http.NewServeMux()}
	ctx := klog.NewContext(i.Context(), logr.Discard())
	r.broker = New(ctx, Options{
		Log: r.session, Send: i.send, Clock: clock.RealClock{},
		Addresses:     func(key eventing.Key) []string { return []string{"http://broker/" + key.Name} },
		Exists:        func(uid types.UID) bool { return !i.absent[uid] },
		HealthChanged: func(eventing.Key) {},
	})
	owners := ownership.NewTable(r.view, streams.Place)
	r.shards = streams.New(ctx, streams.Options{
		Broker: r.broker, Owners: owners, Peers: transport{i, name},
		Subscribed: func(context.Context) ([]eventing.Consumer, error) {
			i.mu.Lock()
			defer i.mu.Unlock()
			return i.subscribed, nil
		},
	})
	r.ingress = ingress.New(ingress.Options{Accept: r.shards.Accept, Exists: r.shards.Exists, Peers: &ingress.Forwarder{
		Router: r.shards.Route,
		Owners: owners, Transport: transport{i, name}, Exists: r.shards.Exists,
	}})
	r.peers.Handle("/"+ingress.ForwardedElement+"/", http.StripPrefix("/"+ingress.ForwardedElement, r.ingress.Forwarded()))
	r.peers.Handle("/"+ingress.PipelineElement+"/", http.StripPrefix("/"+ingress.PipelineElement, r.ingress.Pipelined()))
	r.peers.Handle("/"+streams.HandoverElement+"/", http.StripPrefix("/"+streams.HandoverElement, r.shards.Handover()))
	r.peers.Handle("/"+streams.ConsumersElement+"/", http.StripPrefix("/"+streams.ConsumersElement, r.shards.HasConsumer()))
	r.peers.Handle("/"+streams.PartitionsElement+"/", http.StripPrefix("/"+streams.PartitionsElement, r.shards.HasPartition()))
	for n := range streamCount {
		i.must(r.shards.SetStream(ctx, eventing.Stream{Key: streamKey(n), UID: types.UID(streamKey(n).Name)}))
		c := trigger(fmt.Sprint("t", n), withDelivery(eventing.Delivery{Retry: 10, Policy: eventing.BackoffLinear, Backoff: time.Second}))
		c.Stream, c.StreamUID = streamKey(n), types.UID(streamKey(n).Name)
		i.must(r.shards.SetConsumer(ctx, c))
	}
	i.must(r.shards.Start(ctx))
	i.replicas[name] = r
	return r
}

// streamCount is the number of Brokers, each with one Trigger, t0 and so on.
const streamCount = 12

func streamKey(n int) eventing.Key {
	return eventing.Key{Kind: eventing.Broker, Namespace: "default", Name: fmt.Sprint("b", n)}
}

func set(self string, names ...string) *membership.Set {
	all := make([]membership.Member, 0, len(names))
	for _, name := range names {
		all = append(all, membership.Member{Name: name, Address: name})
	}
	return membership.NewSet(self, all...)
}

// see makes some replicas observe some members.
func (i *installation) see(replicas []string, seen ...string) {
	for _, name := range replicas {
		i.replicas[name].view.Set(set(name, seen...))
	}
}

// owned returns the number of a stream that a replica owns among some.
func owned(t *testing.T, by string, names ...string) int {
	t.Helper()
	for n := range streamCount {
		if ownership.Among(set(by, names...), streams.Place).Owns(streamKey(n)) {
			return n
		}
	}
	t.Fatalf("%s owns none of the streams", by)
	return 0
}

// kill ends a replica like the kill of its process.
func (i *installation) kill(name string) {
	i.unplug(name)
	r := i.replicas[name]
	delete(i.replicas, name)
	r.session.close()
	r.shards.Stop(0)
}

func (i *installation) unplug(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cut.Insert(name)
}

func (i *installation) plug(name string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cut.Delete(name)
}

// transport sends requests of a replica to others.
type transport struct {
	*installation
	from string
}

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	t.mu.Lock()
	gone := t.cut.HasAny(t.from, r.URL.Host)
	if strings.HasPrefix(r.URL.Path, "/"+ingress.ForwardedElement+"/") {
		t.forwards++
	}
	t.mu.Unlock()
	if gone {
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	recorder := httptest.NewRecorder()
	t.replicas[r.URL.Host].peers.ServeHTTP(recorder, r)
	return recorder.Result(), nil
}

// post sends an event to a replica, and returns the status of the answer.
func (i *installation) post(replica string, n int, id string) int {
	i.Helper()
	return i.sendTo(replica, streamKey(n), map[string]string{"id": id})
}

// sendTo sends an event with some attributes to a replica, and returns the status of the answer.
func (i *installation) sendTo(replica string, to eventing.Key, attributes map[string]string) int {
	i.Helper()
	ctx, cancel := context.WithCancel(i.Context())
	defer cancel()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, ingress.Path(to), strings.NewReader("data"))
	for _, all := range []map[string]string{{"specversion": "1.0", "source": "/s", "type": "t"}, attributes} {
		for name, value := range all {
			r.Header.Set("Ce-"+name, value)
		}
	}
	recorder := httptest.NewRecorder()
	i.replicas[replica].ingress.ServeHTTP(recorder, r)
	result := recorder.Result()
	defer result.Body.Close()
	if _, err := io.ReadAll(result.Body); err != nil {
		i.Fatal(err)
	}
	if result.StatusCode == http.StatusServiceUnavailable && result.Header.Get("Retry-After") == "" {
		i.Error("the rejection has no Retry-After")
	}
	return result.StatusCode
}

func (i *installation) expectPost(replica string, n int, id string, want int) {
	i.Helper()
	if have := i.post(replica, n, id); have != want {
		i.Errorf("%s answers %d to event %s, want %d", replica, have, id, want)
	}
}

func sorted(ids string) string {
	all := strings.Fields(ids)
	slices.Sort(all)
	return strings.Join(all, " ")
}

var abc = []string{"a", "b", "c"}

// All replicas accept events for all streams, and each event is delivered once.
func TestShardsForward(t *testing.T) {
	install(t, abc, func(i *installation) {
		for n := range streamCount {
			for _, name := range abc {
				i.expectPost(name, n, name, http.StatusAccepted)
			}
		}
		i.after(time.Second)
		for n := range streamCount {
			i.expect(fmt.Sprint("t", n, " took"), sorted(i.tried(fmt.Sprint("t", n))), "a b c")
		}
		i.expectPost("a", streamCount, "x", http.StatusNotFound)
		i.expectPost("b", streamCount, "x", http.StatusNotFound)
		serving := 0
		for _, name := range abc {
			i.replicas[name].broker.streams.Range(func(any, any) bool { serving++; return true })
		}
		if serving != streamCount {
			t.Errorf("%d streams are served, want %d", serving, streamCount)
		}
	})
}

// When a replica leaves the membership, others acquire its streams and deliver the waiting events without delay.
func TestShardsDrain(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		name := fmt.Sprint("t", n)
		i.answer(name, failing(1, 503))
		for _, id := range []string{"1", "2"} {
			i.expectPost("b", n, id, http.StatusAccepted)
		}
		i.see(abc, "b", "c")
		i.expectPost("a", n, "3", http.StatusAccepted)
		i.expectPost("b", n, "4", http.StatusAccepted)
		i.after(5 * time.Second)
		i.expect(name+" took", sorted(i.received(name)), "1 2 3 4")
		i.log.expectLeft(t, streamKey(n).Name, map[string]int{})
		if i.replicas["a"].broker.Exists(streamKey(n)) {
			t.Error("a still has a stream")
		}
	})
}

// An attempt in flight continues for a moment when the owner of a stream changes, and the new owner does not repeat it.
func TestShardsDrainDuringAttempt(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		name := fmt.Sprint("t", n)
		i.answer(name, slow(releaseGrace/2))
		i.expectPost("a", n, "1", http.StatusAccepted)
		i.after(0)
		i.see(abc, "b", "c")
		i.after(time.Minute)
		i.expect(name+" was sent", i.tried(name), "1")
	})
}

// An attempt that takes longer is canceled, and the new owner repeats it.
func TestShardsDrainDuringLongAttempt(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		name := fmt.Sprint("t", n)
		i.answer(name, func(attempt int) (time.Duration, sender.Result) {
			if attempt == 1 {
				return stuck, status(202)
			}
			return 0, status(202)
		})
		i.expectPost("a", n, "1", http.StatusAccepted)
		i.after(0)
		i.see(abc, "b", "c")
		i.after(2 * releaseGrace)
		i.expect(name+" took", i.received(name), "1")
	})
}

// Events for a consumer without an address are kept by each owner of the stream, and delivered once the address is known.
func TestShardsUnresolved(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		name := fmt.Sprint("t", n)
		c := trigger(name)
		c.Stream, c.StreamUID = streamKey(n), types.UID(streamKey(n).Name)
		set := func(to eventing.Endpoint) {
			c.Subscriber = to
			for _, r := range i.replicas {
				i.must(r.shards.SetConsumer(i.Context(), c))
			}
		}
		set(eventing.Endpoint{Unresolved: true})
		i.expectPost("a", n, "1", http.StatusAccepted)
		i.see(abc, "b", "c")
		i.after(time.Minute)
		i.expectPost("b", n, "2", http.StatusAccepted)
		i.kill("b")
		i.see([]string{"a", "c"}, "a", "c")
		i.after(time.Minute)
		i.expectPost("c", n, "3", http.StatusAccepted)
		i.after(time.Minute)
		i.expect(name+" took", i.tried(name), "")
		set(trigger(name).Subscriber)
		i.expectPost("c", n, "4", http.StatusAccepted)
		i.after(time.Minute)
		i.expect(name+" took", sorted(i.received(name)), "1 2 3 4")
		i.log.expectLeft(t, streamKey(n).Name, map[string]int{})
	})
}

// A replica whose informers lag behind accepts no events for a gained stream before it has the consumers of the former
// owner, which would not get them. It does not wait for deleted consumers.
func TestShardsBehind(t *testing.T) {
	for name, brought := range map[string]bool{"brought": true, "deleted": false} {
		t.Run(name, func(t *testing.T) {
			install(t, abc, func(i *installation) {
				n := owned(t, "a", abc...)
				late := trigger("late")
				late.Stream, late.StreamUID = streamKey(n), types.UID(streamKey(n).Name)
				subscribe := func(replica string) { i.must(i.replicas[replica].shards.SetConsumer(i.Context(), late)) }
				subscribe("a")
				i.subscribed = []eventing.Consumer{{Key: late.Key, UID: late.UID, Stream: late.Stream}}
				i.expectPost("b", n, "1", http.StatusAccepted)
				i.after(0)
				i.kill("a")
				i.see([]string{"b", "c"}, "b", "c")
				i.expectPost("b", n, "2", http.StatusServiceUnavailable)
				want := "1"
				if brought {
					subscribe("b")
					subscribe("c")
					want = "1 3"
				} else {
					i.mu.Lock()
					i.subscribed = nil
					i.mu.Unlock()
					i.after(3 * time.Second)
				}
				i.expectPost("c", n, "3", http.StatusAccepted)
				i.after(10 * time.Second)
				i.expect("late took", sorted(i.received("late")), want)
				i.expect(fmt.Sprint("t", n, " took"), sorted(i.received(fmt.Sprint("t", n))), "1 3")
			})
		})
	}
}

// Other replicas deliver the accepted events of a killed replica once they observe that it is no longer a member. Until
// then senders get 503 with Retry-After.
func TestShardsKill(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		name := fmt.Sprint("t", n)
		i.answer(name, slow(time.Minute))
		i.expectPost("b", n, "1", http.StatusAccepted)
		i.kill("a")
		i.expectPost("b", n, "2", http.StatusServiceUnavailable)
		i.answer(name, always(202))
		i.see([]string{"b", "c"}, "b", "c")
		i.expectPost("b", n, "3", http.StatusAccepted)
		i.expectPost("c", n, "4", http.StatusAccepted)
		i.after(10 * time.Second)
		i.expect(name+" took", sorted(i.received(name)), "1 3 4")
		i.add("a", abc...)
		i.plug("a")
		i.see([]string{"b", "c"}, abc...)
		i.expectPost("c", n, "5", http.StatusAccepted)
		i.after(10 * time.Second)
		i.expect(name+" took", sorted(i.received(name)), "1 3 4 5")
	})
}

// A partitioned replica continues with its streams, as others do: no accepted event of either is lost.
func TestShardsPartition(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		name := fmt.Sprint("t", n)
		i.unplug("a")
		i.see([]string{"b", "c"}, "b", "c")
		i.expectPost("a", n, "1", http.StatusAccepted)
		i.expectPost("b", n, "2", http.StatusAccepted)
		// No replica keeps consumers of queues that are empty for long.
		i.after(10 * time.Minute)
		i.answer(name, failing(1, 503))
		i.expectPost("c", n, "3", http.StatusAccepted)
		i.plug("a")
		// The owner meanwhile reports that it stored records.
		i.see([]string{"b", "c"}, abc...)
		i.after(10 * time.Second)
		i.expect(name+" took", sorted(i.received(name)), "1 2 3")
		i.log.expectLeft(t, streamKey(n).Name, map[string]int{})
	})
}

// A forwarding replica waits for an owner that has not observed its ownership yet.
func TestShardsWaitForOwner(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		owner, _ := ownership.Among(set("b", "b", "c"), streams.Place).Owner(streamKey(n))
		next := owner.Name
		other := "b"
		if next == "b" {
			other = "c"
		}
		i.see([]string{other}, "b", "c")
		time.AfterFunc(time.Second, func() { i.see([]string{next}, "b", "c") })
		i.expectPost(other, n, "1", http.StatusAccepted)
		i.see([]string{next}, abc...)
		i.after(time.Second)
		i.expectPost(other, n, "2", http.StatusServiceUnavailable)
	})
}

// The owner of a deleted Broker deletes its log.
func TestShardsDelete(t *testing.T) {
	install(t, abc, func(i *installation) {
		n := owned(t, "a", abc...)
		i.answer(fmt.Sprint("t", n), slow(stuck))
		i.expectPost("b", n, "1", http.StatusAccepted)
		for _, name := range []string{"b", "c"} {
			i.must(i.replicas[name].shards.RemoveStream(i.Context(), streamKey(n)))
		}
		if left := i.log.left(streamKey(n).Name); len(left) == 0 {
			t.Error("replicas other than the owner delete events")
		}
		i.must(i.replicas["a"].shards.RemoveStream(i.Context(), streamKey(n)))
		if left := i.log.left(streamKey(n).Name); len(left) > 0 {
			t.Errorf("events remain: %v", left)
		}
		i.expectPost("b", n, "2", http.StatusNotFound)
	})
}

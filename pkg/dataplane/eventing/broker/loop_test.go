package broker

import (
	"testing"
	"time"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// The number of Brokers that an event may still pass through continues from a Channel to a Broker, so that loops through
// both end. Other consumers do not see it.
func TestTTLThroughChannel(t *testing.T) {
	toBroker := func(c *eventing.Consumer) { c.Subscriber.URL = "http://broker/Broker/b" }
	replyToBroker := func(c *eventing.Consumer) { c.Reply.URL = "http://broker/Broker/b" }
	for name, test := range map[string]struct {
		consumer eventing.Consumer
		answer   answer
		url      string
		want     string
	}{
		"subscriber of this server": {subscription("a", toBroker), nil, "http://broker/Broker/b", "7"},
		"other subscriber":          {subscription("a"), nil, "http://a/", ""},
		"reply to a Broker":         {subscription("a", replyToBroker), replying(newEvent("2")), "http://broker/Broker/b", "7"},
		"reply with its own TTL":    {subscription("a", replyToBroker), replying(newEvent("2", ttl("3"))), "http://broker/Broker/b", "3"},
		"reply to another endpoint": {subscription("a", withReply), replying(newEvent("2")), "http://reply/", ""},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				w.set(test.consumer)
				w.answer("a", test.answer)
				w.must(w.Accept(w.Context(), channelKey, []*event.Event{newEvent("1", ttl("7"))}))
				w.after(time.Second)
				w.mu.Lock()
				defer w.mu.Unlock()
				for _, call := range w.calls {
					if call.url != test.url {
						continue
					}
					if have, _ := call.event.Get(event.TTL); have != test.want {
						t.Errorf("%s is %q, want %q", event.TTL, have, test.want)
					}
					return
				}
				t.Error("nothing was sent to " + test.url)
			})
		})
	}
}

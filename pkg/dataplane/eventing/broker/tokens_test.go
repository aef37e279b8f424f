package broker

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/sender"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/tokens"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// fakeTokens has the tokens of all keys: the account and the audience. It has none of the audiences in missing.
type fakeTokens struct {
	mu      sync.Mutex
	missing map[string]bool
	// replacements is the number of calls for which Rejected returns true.
	replacements int
	gets         int
}

func (f *fakeTokens) Get(_ context.Context, key tokens.Key) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gets++
	if f.missing[key.Audience] {
		return "", &tokens.UnavailableError{RetryAfter: 10 * time.Second, Err: errors.New("no token")}
	}
	return key.Namespace + "/" + key.Account.Name + " for " + key.Audience, nil
}

func (f *fakeTokens) Rejected(tokens.Key, string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replacements--
	return f.replacements >= 0
}

func (f *fakeTokens) miss(audience string, missing bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.missing[audience] = missing
}

// withTokens sets the tokens of a fixture's broker.
func withTokens(w *fixture) *fakeTokens {
	f := &fakeTokens{missing: map[string]bool{}}
	w.Broker.options.Tokens = f
	return f
}

// authenticated sets the account of a consumer, and the audiences of its destinations.
func authenticated(c *eventing.Consumer) {
	c.Account = eventing.Account{Name: "account", UID: "u"}
	for _, to := range []*eventing.Endpoint{&c.Subscriber, &c.Reply, &c.DeadLetter} {
		if to.URL != "" {
			to.Audience = "audience of " + to.URL
		}
	}
}

// tokensOf lists the tokens of the attempts at an address.
func (w *fixture) tokensOf(name string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []string
	for _, c := range w.calls {
		if c.url == "http://"+name+"/" {
			all = append(all, c.options.Token)
		}
	}
	return all
}

func (w *fixture) expectTokens(name string, want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.tokensOf(name)); diff != "" {
		w.Errorf("tokens for %s (-want +got):\n%s", name, diff)
	}
}

// TestTokens checks that each destination with an audience gets the consumer's token for that audience, and no other destination gets a token.
func TestTokens(t *testing.T) {
	run(t, func(w *fixture) {
		withTokens(w)
		w.set(subscription("a", withReply, withDeadLetter, authenticated), subscription("b", withDeadLetter, func(c *eventing.Consumer) {
			c.Account.Name, c.DeadLetter.Audience = "account", "audience of dead"
		}))
		w.answer("a", func(int) (time.Duration, sender.Result) { return 0, sender.Result{Code: 200, Reply: newEvent("reply")} })
		w.answer("b", always(400))
		w.accept(channelKey, "1")
		w.after(time.Second)
		w.expectTokens("a", "default/account for audience of http://a/")
		w.expectTokens("reply", "default/account for audience of http://reply/")
		w.expectTokens("b", "")
		w.expectTokens("dead", "default/account for audience of dead")
	})
}

// TestTokenUnavailable checks that without a token no attempt is made or counted, regardless of the number of retries, and that the event
// is delivered once a token is available. The subscriber does not get an event whose reply has no token either.
func TestTokenUnavailable(t *testing.T) {
	for _, missing := range []string{"a", "reply"} {
		t.Run(missing, func(t *testing.T) {
			run(t, func(w *fixture) {
				f := withTokens(w)
				f.miss("audience of http://"+missing+"/", true)
				w.set(subscription("a", withReply, authenticated))
				w.accept(channelKey, "1", "2", "3")
				w.after(24 * time.Hour)
				w.expectTokens("a")
				// Each event needs two tokens, and requests them once in ten seconds.
				if most := (int(24*time.Hour/(10*time.Second)) + 1) * 3 * 2; f.gets > most {
					t.Errorf("%d requests for a token, want at most %d", f.gets, most)
				}
				if health := w.Health(subscription("a").Key); !health.Failing {
					t.Errorf("health: %+v", health)
				}
				f.miss("audience of http://"+missing+"/", false)
				w.after(time.Minute)
				token := "default/account for audience of http://a/"
				w.expectTokens("a", token, token, token)
				w.log.expectLeft(t, "c", nil)
			})
		})
	}
}

// TestOrderWithoutToken checks that ordered delivery keeps the order while no token is available, also over a restart, and counts no attempts.
func TestOrderWithoutToken(t *testing.T) {
	run(t, func(w *fixture) {
		f := withTokens(w)
		f.miss("audience of http://a/", true)
		w.set(trigger("a", ordered, authenticated, withDelivery(linear(2, time.Second))))
		w.accept(brokerKey, numbers(10)...)
		w.after(5 * time.Minute)
		w.restart()
		w.Broker.options.Tokens = f
		w.accept(brokerKey, "later")
		w.after(5 * time.Minute)
		f.miss("audience of http://a/", false)
		w.after(time.Minute)
		w.expect("took", w.received("a"), strings.Join(append(numbers(10), "later"), " "))
		w.log.expectLeft(t, "b", nil)
	})
}

// TestDeadLetterTokenUnavailable checks that dead letters wait for a token too.
func TestDeadLetterTokenUnavailable(t *testing.T) {
	run(t, func(w *fixture) {
		f := withTokens(w)
		f.miss("audience of http://dead/", true)
		w.set(trigger("a", withDeadLetter, authenticated))
		w.answer("a", always(400))
		w.accept(brokerKey, "1")
		w.after(24 * time.Hour)
		w.expectTokens("dead")
		f.miss("audience of http://dead/", false)
		w.after(time.Minute)
		w.expectTokens("dead", "default/account for audience of http://dead/")
	})
}

// TestNoAccount checks that the events of a consumer without an account are kept while its destination has an audience.
func TestNoAccount(t *testing.T) {
	run(t, func(w *fixture) {
		withTokens(w)
		without := trigger("a", authenticated)
		without.Account = eventing.Account{}
		w.set(without)
		w.accept(brokerKey, "1")
		w.after(time.Hour)
		w.expectTokens("a")
		w.set(trigger("a", authenticated))
		w.after(time.Minute)
		w.expectTokens("a", "default/account for audience of http://a/")
	})
}

// TestUnauthorized checks that 401 is final, unless it comes from a Broker or Channel of this server, or another token may be accepted:
// that is not an attempt.
func TestUnauthorized(t *testing.T) {
	for name, test := range map[string]struct {
		retries, replacements int
		own                   bool
		attempts              int
	}{
		"final":       {retries: 2, attempts: 1},
		"other token": {replacements: 2, attempts: 3},
		"own Broker":  {retries: 2, own: true, attempts: 3},
	} {
		t.Run(name, func(t *testing.T) {
			run(t, func(w *fixture) {
				withTokens(w).replacements = test.replacements
				c := trigger("a", authenticated, withDelivery(linear(test.retries, time.Second)))
				if test.own {
					w.Broker.addresses.Store(c.Subscriber.URL, struct{}{})
				}
				w.set(c)
				w.answer("a", always(401))
				w.accept(brokerKey, "1")
				w.after(time.Hour)
				if got := len(w.tokensOf("a")); got != test.attempts {
					t.Errorf("%d attempts, want %d", got, test.attempts)
				}
			})
		})
	}
}

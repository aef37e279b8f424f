package eventing

import (
	"context"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/validation"
)

func TestChannelHost(t *testing.T) {
	long := strings.Repeat("orders-", 9)[:62] + "x"
	for name, want := range map[string]string{
		"orders":                "orders-kn-channel",
		strings.Repeat("a", 52): strings.Repeat("a", 52) + "-kn-channel",
		// The name in Knative's releases.
		strings.Repeat("a", 53): "aaaaaaaaaaaaaaaaaaaae9e7e260dce84ffa6e0e7eb5fd9d37fc-kn-channel",
	} {
		got := ChannelHost(name)
		if got != want {
			t.Errorf("the host of %s is %s, want %s", name, got, want)
		}
		if errs := validation.IsDNS1035Label(got); len(errs) > 0 {
			t.Errorf("the host of %s is %s: %v", name, got, errs)
		}
	}
	if a, b := ChannelHost(long), ChannelHost(long[:62]+"y"); a == b || len(a) != 63 {
		t.Errorf("the hosts of two names of 63 characters are %s and %s", a, b)
	}
}

type streams map[Key]Stream

func (s streams) SetStream(_ context.Context, spec Stream) error { s[spec.Key] = spec; return nil }
func (s streams) RemoveStream(_ context.Context, key Key) error  { delete(s, key); return nil }

func TestChannelHosts(t *testing.T) {
	set := streams{}
	hosts := &ChannelHosts{Streams: set}
	key := Key{Kind: Channel, Namespace: "shop", Name: strings.Repeat("a", 63)}
	short := Key{Kind: Channel, Namespace: "shop", Name: strings.TrimSuffix(ChannelHost(key.Name), ChannelHostSuffix)}
	other := Key{Kind: Channel, Namespace: "shop", Name: "orders"}
	for _, k := range []Key{key, other} {
		if err := hosts.SetStream(t.Context(), Stream{Key: k}); err != nil {
			t.Fatal(err)
		}
	}
	if got, found := hosts.Find(short); !found || got != key {
		t.Errorf("%s leads to %v, %v; want %s", short, got, found, key)
	}
	foreign := short
	foreign.Namespace = "billing"
	for _, k := range []Key{other, key, foreign} {
		if got, found := hosts.Find(k); found {
			t.Errorf("%s leads to %v, although it is not a shortened name", k, got)
		}
	}
	if err := hosts.RemoveStream(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if got, found := hosts.Find(short); found || len(set) != 1 {
		t.Errorf("%s leads to %v after its Channel was removed", short, got)
	}
}

package hostnames

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/routing"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func owner(kind Kind, name string) Owner {
	return Owner{Kind: kind, Key: routing.Key{Namespace: "default", Name: name}}
}

// claim returns a claim of one host name, of an object that is age hours younger than others.
func claim(o Owner, age int, host string, holds bool) Claim {
	c := Claim{Owner: o, Created: began.Add(time.Duration(age) * time.Hour), Hosts: []string{host}}
	if holds {
		c.Held = c.Hosts
	}
	return c
}

// participant lists stored claims and records enqueued objects.
type participant struct {
	stored   []Claim
	err      error
	enqueued []string
}

func (p *participant) join(c *Claims, kind Kind) {
	c.Join(kind, Participant{
		List:    func(*settings.Settings) ([]Claim, error) { return p.stored, p.err },
		Enqueue: func(key routing.Key) { p.enqueued = append(p.enqueued, key.Name) },
	})
}

// TestOwners covers the decision between a Route and a DomainMapping that claim the same host name, in each order of their claims.
func TestOwners(t *testing.T) {
	const host = "www.example.com"
	route, mapping := owner(Route, "hello"), owner(DomainMapping, host)
	for name, test := range map[string]struct {
		claims []Claim
		want   Owner
	}{
		"the older one":                      {[]Claim{claim(route, 1, host, false), claim(mapping, 0, host, false)}, mapping},
		"the Route that serves it":           {[]Claim{claim(route, 1, host, true), claim(mapping, 0, host, false)}, route},
		"the DomainMapping that serves it":   {[]Claim{claim(route, 0, host, false), claim(mapping, 1, host, true)}, mapping},
		"the older one, when both served it": {[]Claim{claim(route, 0, host, true), claim(mapping, 1, host, true)}, route},
	} {
		for _, first := range []int{0, 1} {
			c := &Claims{}
			none := &participant{}
			none.join(c, Route)
			none.join(c, DomainMapping)
			s := &settings.Settings{}
			var lost [2]map[string]Owner
			for _, i := range []int{first, 1 - first, first} {
				var err error
				if lost[i], err = c.Set(test.claims[i], s); err != nil {
					t.Fatal(err)
				}
			}
			for i := range lost {
				if o, isLost := lost[i][host]; isLost != (test.claims[i].Owner != test.want) || isLost && o != test.want {
					t.Errorf("%s: %s lost it %t, to %s; want %s to have it", name, test.claims[i].Owner, isLost, o, test.want)
				}
			}
			if o, found, err := c.Owner(host, s); o != test.want || !found || err != nil {
				t.Errorf("%s: the owner is %s, %v", name, o, err)
			}
			if _, found, _ := c.Owner("other.example.com", s); found {
				t.Error("an unclaimed name has an owner")
			}
			// The other one gets it when the owner is deleted.
			c.Drop(test.want)
			if o, _, _ := c.Owner(host, s); o == test.want {
				t.Errorf("%s: the owner stays %s", name, o)
			}
		}
	}
}

// TestStored checks that the first decision, and the first after a change of settings, respects the claims of all objects, and that the
// objects whose names have other owners are enqueued.
func TestStored(t *testing.T) {
	const host = "www.example.com"
	c, routes, mappings := &Claims{}, &participant{}, &participant{}
	routes.join(c, Route)
	mappings.join(c, DomainMapping)
	route, mapping := owner(Route, "hello"), owner(DomainMapping, host)
	mappings.stored = []Claim{claim(mapping, 1, host, true)}
	first := &settings.Settings{}
	lost, err := c.Set(claim(route, 0, host, false), first)
	if diff := cmp.Diff(map[string]Owner{host: mapping}, lost); diff != "" || err != nil {
		t.Errorf("lost (-want +got), %v:\n%s", err, diff)
	}
	if diff := cmp.Diff([]string{host}, mappings.enqueued); diff != "" {
		t.Errorf("enqueued (-want +got):\n%s", diff)
	}
	c.Drop(mapping)
	if diff := cmp.Diff([]string{"hello"}, routes.enqueued); diff != "" {
		t.Errorf("enqueued when the owner is gone (-want +got):\n%s", diff)
	}
	mappings.err = errors.New("no list")
	if _, err := c.Set(claim(route, 0, host, false), &settings.Settings{}); !errors.Is(err, mappings.err) {
		t.Errorf("with unknown claims: %v", err)
	}
}

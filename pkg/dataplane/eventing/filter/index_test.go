package filter

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

// anyFilter returns a random filter over a few attributes and values, so that many match and many do not.
func anyFilter(r *rand.Rand, depth int) dialect {
	few := func() values {
		v := values{}
		for range 1 + r.IntN(2) {
			v[attributeNames[r.IntN(len(attributeNames))]] = anyValue(r)
		}
		return v
	}
	list := func() filters {
		var l filters
		for range 1 + r.IntN(3) {
			l = append(l, anyFilter(r, depth-1))
		}
		return l
	}
	kind := r.IntN(7)
	if depth == 0 {
		kind = r.IntN(4)
	}
	switch kind {
	case 0:
		return dialect{Exact: few()}
	case 1:
		return dialect{Prefix: few()}
	case 2:
		return dialect{Suffix: few()}
	case 3:
		expressions := []string{"type = '%s'", "type = '%s' AND EXISTS region", "region = '%s' OR type = 'a'", "NOT (type = '%s')", "type LIKE '%s%%'",
			"TRUE AND (region = 'a' AND type = '%s')"}
		return dialect{CESQL: fmt.Sprintf(expressions[r.IntN(len(expressions))], anyValue(r))}
	case 4:
		return dialect{All: list()}
	case 5:
		return dialect{Any: list()}
	default:
		inner := anyFilter(r, depth-1)
		return dialect{Not: &inner}
	}
}

var attributeNames = []string{"type", "source", "region", "specversion", "other"}

func anyValue(r *rand.Rand) string {
	value := make([]byte, 1+r.IntN(3))
	for i := range value {
		value[i] = "ab"[r.IntN(2)]
	}
	return string(value)
}

func anyEvent(r *rand.Rand) *event.Event {
	e := &event.Event{}
	for _, name := range []string{"id", "source", "type", "region", "other"} {
		if name == "id" || r.IntN(4) > 0 {
			e.Attributes = append(e.Attributes, event.Attribute{Name: name, Value: anyValue(r)})
		}
	}
	return e
}

// TestIndex compares an index with an evaluation of each filter, through random changes.
func TestIndex(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 1))
		x := &Index[int, int]{}
		have := map[int]*Filter{}
		for range 40 {
			for range 10 {
				switch key := r.IntN(100); r.IntN(5) {
				case 0:
					x = x.Without(key)
					delete(have, key)
				case 1:
					have[key] = compiled(t, values{attributeNames[r.IntN(len(attributeNames))]: []string{"", "a", "ab", "1.0"}[r.IntN(4)]})
					x = x.With(key, have[key], key)
				default:
					have[key] = compiled(t, nil, anyFilter(r, 3))
					x = x.With(key, have[key], key)
				}
			}
			for range 10 {
				e := anyEvent(r)
				var want []int
				for key, f := range have {
					if match(f, e) {
						want = append(want, key)
					}
				}
				got := found(x, e)
				slices.Sort(want)
				slices.Sort(got)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Fatalf("seed %d, event %v: (-want +got)\n%s", seed, e.Attributes, diff)
				}
			}
		}
		for key := range 100 {
			x = x.Without(key)
		}
		if !x.entries.empty() || !x.names.empty() || x.rest.count > 0 {
			t.Errorf("seed %d: an index without keys is not empty", seed)
		}
	}
}

// TestIndexIsImmutable keeps the indexes of all steps.
func TestIndexIsImmutable(t *testing.T) {
	steps := []*Index[int, int]{{}}
	same, apart := compiled(t, values{"type": "a"}), compiled(t, nil, dialect{Not: &dialect{Exact: values{"type": "b"}}})
	for key := range 20 {
		f := same
		if key%2 == 0 {
			f = apart
		}
		steps = append(steps, steps[key].With(key, f, key))
		// A second change of the same index must not affect the first.
		steps[key].With(100, f, 100)
	}
	for step, x := range steps {
		got := found(x, newEvent("type", "a"))
		slices.Sort(got)
		if len(got) != step || step > 0 && got[step-1] != step-1 {
			t.Errorf("the index of %d filters finds %v", step, got)
		}
	}
}

// TestIndexLooksUp covers the filters that are found without evaluating all of them, and the number of evaluated ones.
func TestIndexLooksUp(t *testing.T) {
	for _, tt := range []struct {
		name   string
		filter func(i int) (values, filters)
		rest   int
	}{
		{"exact", func(i int) (values, filters) { return values{"type": fmt.Sprint(i)}, nil }, 0},
		{"exact within a common value", func(i int) (values, filters) { return values{"type": "a", "region": fmt.Sprint(i)}, nil }, 0},
		{"exact within all", func(i int) (values, filters) {
			return nil, filters{{Not: &dialect{CESQL: "FALSE"}}, {All: filters{{CESQL: "TRUE"}, {Exact: values{"type": fmt.Sprint(i)}}}}}
		}, 0},
		{"any of several", func(i int) (values, filters) {
			return nil, filters{{Any: filters{{Exact: values{"type": fmt.Sprint(i)}}, {Prefix: values{"region": fmt.Sprintf("%d.", i)}}}}}
		}, 0},
		{"prefix", func(i int) (values, filters) { return nil, filters{{Prefix: values{"type": fmt.Sprintf("%d.", i)}}} }, 0},
		{"suffix", func(i int) (values, filters) { return nil, filters{{Suffix: values{"type": fmt.Sprintf(".%d", i)}}} }, 0},
		{"cesql", func(i int) (values, filters) {
			return nil, filters{{CESQL: fmt.Sprintf("EXISTS region AND type = '%d'", i)}}
		}, 0},
		{"never", func(int) (values, filters) { return values{"specversion": "2"}, nil }, 0},
		{"not", func(i int) (values, filters) {
			return nil, filters{{Not: &dialect{Exact: values{"type": fmt.Sprint(i)}}}}
		}, 1000},
		{"any with a negation", func(i int) (values, filters) {
			return nil, filters{{Any: filters{{Exact: values{"type": "a"}}, {Not: &dialect{Exact: values{"type": fmt.Sprint(i)}}}}}}
		}, 1000},
		{"everything", func(int) (values, filters) { return nil, nil }, 1000},
	} {
		x := &Index[int, int]{}
		for i := range 1000 {
			attributes, list := tt.filter(i)
			x = x.With(i, compiled(t, attributes, list...), i)
		}
		if x.rest.count != tt.rest {
			t.Errorf("%s: %d filters are evaluated for each event, want %d", tt.name, x.rest.count, tt.rest)
		}
		for _, c := range []condition{{exact, "type", "a"}, {exact, "type", "7"}, {prefix, "type", "7."}} {
			if n := x.attribute(c.name).postings(c).count; n > 10 {
				t.Errorf("%s: %d filters are looked up by %v", tt.name, n, c)
			}
		}
	}
}

func indexOf(t testing.TB, n int) *Index[int, int] {
	x := &Index[int, int]{}
	for i := range n {
		x = x.With(i, compiled(t, values{"type": fmt.Sprintf("com.example.order.%d", i), "source": "/orders"}), i)
	}
	return x
}

func TestMatchDoesNotAllocate(t *testing.T) {
	x, e := indexOf(t, 100), newEvent("type", "com.example.order.7", "region", "eu")
	x = x.With(1000, compiled(t, nil, dialect{Prefix: values{"type": "com."}}), 1000)
	found, budget := make([]int, 0, 10), NewBudget(t.Context())
	if allocs := testing.AllocsPerRun(100, func() {
		if found, _ = x.Match(budget, e, found[:0]); len(found) != 2 {
			t.Fatalf("found %v", found)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkMatch(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			x, e := indexOf(b, n), newEvent("type", "com.example.order.0", "region", "eu", "time", "2020-01-01T00:00:00Z")
			found, budget := make([]int, 0, 10), NewBudget(b.Context())
			b.ReportAllocs()
			for b.Loop() {
				if found, _ = x.Match(budget, e, found[:0]); len(found) != 1 {
					b.Fatal(found)
				}
			}
		})
	}
}

// BenchmarkWith adds 5,000 filters, once with distinct values, once with a common one.
func BenchmarkWith(b *testing.B) {
	for name, value := range map[string]func(int) string{"apart": strconv.Itoa, "same": func(int) string { return "a" }} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				x := &Index[int, int]{}
				for i := range 5000 {
					x = x.With(i, compiled(b, values{"type": value(i)}), i)
				}
			}
		})
	}
}

// TestPostings adds and removes many filters with the same condition.
func TestPostings(t *testing.T) {
	f, e := compiled(t, values{"type": "a"}), newEvent("type", "a")
	x := &Index[int, int]{}
	const n = 5*chunk + 3
	for key := range n {
		x = x.With(key, f, key)
	}
	for key := range n {
		if key%3 != 0 {
			x = x.Without(key)
		}
	}
	x = x.With(n, f, n)
	got := found(x, e)
	slices.Sort(got)
	var want []int
	for key := 0; key <= n; key++ {
		if key%3 == 0 || key == n {
			want = append(want, key)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

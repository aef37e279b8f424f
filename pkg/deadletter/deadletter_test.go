package deadletter

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	registrydeadletter "github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/deadletter"
)

// fixture has dead letters on a real event log.
type fixture struct {
	*DeadLetters
	t     *testing.T
	store *deadletter.Store
	gone  sets.Set[types.UID]
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	log, err := eventlog.Open(t.Context(), eventlog.Options{Dir: t.TempDir(), Logger: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	f := &fixture{t: t, gone: sets.New[types.UID]()}
	f.store = deadletter.NewStore(deadletter.Options{
		Log: log, Retention: time.Hour, MaxBytes: 1 << 30, MaxTotalBytes: 1 << 30, Clock: clock.RealClock{}, Logger: logr.Discard(),
		Gone: func(_ context.Context, consumers []types.UID) (sets.Set[types.UID], error) {
			return sets.New(consumers...).Intersection(f.gone), nil
		},
		InUse: func(string) bool { return true }, Evicted: func(string, map[types.UID]uint64) {},
	})
	f.DeadLetters = &DeadLetters{
		Store: f.store, Exists: func(uid types.UID) bool { return !f.gone.Has(uid) },
		Consumer: func(key eventing.Key) (types.UID, bool) {
			uid := types.UID("uid-" + key.Name)
			return uid, !f.gone.Has(uid)
		},
	}
	return f
}

// letter returns a dead letter of a Trigger.
func letter(namespace, trigger, id string, data []byte) *deadletter.Letter {
	return &deadletter.Letter{
		Failure:  deadletter.Failure{Address: "http://a/", Attempts: 3, Code: 503, Error: "503", Response: []byte("no"), Accepted: time.Unix(1, 0), Failed: time.Unix(2, 0)},
		Consumer: eventing.Key{Kind: eventing.Trigger, Namespace: namespace, Name: trigger}, ConsumerUID: types.UID("uid-" + trigger),
		Stream: eventing.Key{Kind: eventing.Broker, Namespace: namespace, Name: "orders"},
		Event: &event.Event{
			Attributes: []event.Attribute{
				{Name: event.ID, Value: id}, {Name: event.Source, Value: "/s"}, {Name: event.EventType, Value: "t"}, {Name: event.DataContentType, Value: "application/json"},
			},
			Data: data, Headers: []event.Header{{Name: "traceparent", Value: "00"}, {Name: "knative-x", Value: "1"}, {Name: "knative-x", Value: "2"}},
		},
	}
}

func (f *fixture) add(letters ...*deadletter.Letter) {
	f.t.Helper()
	for _, l := range letters {
		if err := f.store.Add(f.t.Context(), l); err != nil {
			f.t.Fatal(err)
		}
	}
}

func selection(namespace, label, field string) *registrydeadletter.Selection {
	l, err := labels.Parse(label)
	if err != nil {
		panic(err)
	}
	return &registrydeadletter.Selection{Namespace: namespace, Labels: l, Fields: fields.ParseSelectorOrDie(field)}
}

// list returns the IDs of the events of a list, read in pages, and the size of the pages.
func (f *fixture) list(s *registrydeadletter.Selection, limit int64) (ids []string, pages []int) {
	f.t.Helper()
	for position := ""; ; {
		list, err := f.List(f.t.Context(), s, limit, position)
		if err != nil {
			f.t.Fatal(err)
		}
		for i := range list.Items {
			ids = append(ids, list.Items[i].Event.ID)
		}
		pages = append(pages, len(list.Items))
		if position = list.Continue; position == "" {
			return ids, pages
		}
	}
}

// TestGet shows an event whole: JSON and other text as it is, other data in base64.
func TestGet(t *testing.T) {
	f := newFixture(t)
	for id, data := range map[string]string{"json": `{"a":1.0000000000000000001}`, "text": "a\nb\té", "binary": "\x00\xff", "control": "a\x1b[31m", "none": ""} {
		f.add(letter("ns", "t", id, []byte(data)))
	}
	list, err := f.List(t.Context(), selection("ns", "", ""), 0, "")
	if err != nil || len(list.Items) != 5 {
		t.Fatalf("%d items: %v", len(list.Items), err)
	}
	for i := range list.Items {
		item := &list.Items[i]
		got, err := f.Get(t.Context(), "ns", item.Name)
		if err != nil || cmp.Diff(item, got) != "" {
			t.Errorf("%s: %v", cmp.Diff(item, got), err)
		}
		switch data := got.Event.Data; got.Event.ID {
		case "json", "text":
			if data == "" || got.Event.DataBase64 != nil {
				t.Errorf("data %q, %q", data, got.Event.DataBase64)
			}
		case "binary", "control":
			if data != "" || len(got.Event.DataBase64) == 0 {
				t.Errorf("data %q, %q", data, got.Event.DataBase64)
			}
		}
	}
	got := list.Items[slices.IndexFunc(list.Items, func(d eventingv1alpha1.DeadLetter) bool { return d.Event.ID == "none" })]
	if got.CreationTimestamp.IsZero() || len(got.UID) != 36 || got.ResourceVersion == "" {
		t.Errorf("metadata %+v", got.ObjectMeta)
	}
	got.ObjectMeta = metav1.ObjectMeta{Labels: got.Labels}
	accepted, failed := metav1.NewMicroTime(time.Unix(1, 0).UTC()), metav1.NewMicroTime(time.Unix(2, 0).UTC())
	got.AcceptedAt.Time, got.FailedAt.Time = got.AcceptedAt.UTC(), got.FailedAt.UTC()
	want := eventingv1alpha1.DeadLetter{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{eventingv1alpha1.DeadLetterTriggerLabel: "t", eventingv1alpha1.DeadLetterBrokerLabel: "orders"}},
		Consumer:   eventingv1alpha1.DeadLetterObject{Kind: "Trigger", Name: "t", UID: "uid-t"}, Stream: eventingv1alpha1.DeadLetterObject{Kind: "Broker", Name: "orders"},
		Subscriber: "http://a/", Reason: eventingv1alpha1.DeadLetterSubscriberFailed, Attempts: 3, LastCode: 503, LastError: "503", LastResponse: "no",
		AcceptedAt: &accepted, FailedAt: &failed,
		Event: eventingv1alpha1.DeadLetterEvent{
			SpecVersion: "1.0", ID: "none", Source: "/s", Type: "t", Attributes: map[string]string{"datacontenttype": "application/json"},
			Headers: map[string]string{"traceparent": "00", "knative-x": "1, 2"},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestNames finds no dead letter by other names.
func TestNames(t *testing.T) {
	f := newFixture(t)
	if _, err := f.Get(t.Context(), "ns", "x-1"); !apierrors.IsNotFound(err) {
		t.Errorf("a namespace without dead letters: %v", err)
	}
	f.add(letter("ns", "t", "1", nil))
	position, err := f.store.Position(t.Context(), "ns")
	if err != nil {
		t.Fatal(err)
	}
	name := position.Name(1)
	since, _, _ := strings.Cut(name, "-")
	for _, other := range []string{"", "-", "1", "x-1", since, since + "-", since + "-0", since + "-2", since + "-01", since + "-+1", since + "--1", since + "-99999999999999999999", name + "-1"} {
		_, getErr := f.Get(t.Context(), "ns", other)
		if err := f.Delete(t.Context(), "ns", other); !apierrors.IsNotFound(getErr) || !apierrors.IsNotFound(err) {
			t.Errorf("%q: %v, %v", other, getErr, err)
		}
	}
	if err := f.Delete(t.Context(), "other", name); !apierrors.IsNotFound(err) {
		t.Errorf("in another namespace: %v", err)
	}
	if err := f.Delete(t.Context(), "ns", name); err != nil {
		t.Error(err)
	}
	if err := f.Delete(t.Context(), "ns", name); !apierrors.IsNotFound(err) {
		t.Errorf("a second deletion: %v", err)
	}
}

// TestSelect selects by labels and fields, in all namespaces and in pages.
func TestSelect(t *testing.T) {
	f := newFixture(t)
	for i := range 30 {
		f.add(letter("ns", fmt.Sprint("t", i%3), fmt.Sprint(i), nil), letter("other", "t0", fmt.Sprint("other", i), nil))
	}
	for _, test := range []struct {
		namespace, label, field string
		count                   int
	}{
		{"ns", "", "", 30},
		{"", "", "", 60},
		{"none", "", "", 0},
		{"ns", "eventing.knative.dev/trigger=t1", "", 10},
		{"ns", "eventing.knative.dev/trigger!=t1", "", 20},
		{"ns", "eventing.knative.dev/broker=orders", "", 30},
		{"ns", "messaging.knative.dev/subscription=t1", "", 0},
		{"ns", "", "consumer.name=t2", 10},
		{"ns", "", "consumer.kind=Trigger,consumer.name=t2", 10},
		{"ns", "", "consumer.kind=Subscription,consumer.name=t2", 0},
		{"ns", "", "event.id=7", 1},
		{"", "", "event.type=t,lastCode=503,stream.name=orders", 60},
		{"ns", "", "event.type=u", 0},
		{"ns", "", "metadata.name=x", 0},
		{"", "", "metadata.namespace=other", 30},
	} {
		for _, limit := range []int64{0, 1, 7, 500, 1 << 40} {
			ids, pages := f.list(selection(test.namespace, test.label, test.field), limit)
			if len(ids) != test.count || limit > 0 && slices.Max(pages) > int(limit) {
				t.Errorf("%+v with limit %d: %d in pages %v", test, limit, len(ids), pages)
			}
		}
	}
	list, err := f.List(t.Context(), selection("ns", "", "event.id=7"), 0, "")
	if err != nil || len(list.Items) != 1 {
		t.Fatal(err)
	}
	if ids, _ := f.list(selection("ns", "", "metadata.name="+list.Items[0].Name), 0); !slices.Equal(ids, []string{"7"}) {
		t.Errorf("by name: %q", ids)
	}
	f.gone.Insert("uid-t0")
	if ids, _ := f.list(selection("", "", ""), 0); len(ids) != 20 {
		t.Errorf("%d are shown without those of a deleted Trigger, want 20", len(ids))
	}
	if ids, _ := f.list(selection("ns", "eventing.knative.dev/trigger=t0", ""), 0); len(ids) > 0 {
		t.Errorf("%q of a deleted Trigger are shown", ids)
	}
}

// TestContinue rejects positions that are not from a list of the namespace, and ends with the dead letters that there were at the beginning.
func TestContinue(t *testing.T) {
	f := newFixture(t)
	for i := range 5 {
		f.add(letter("ns", "t", fmt.Sprint(i), nil))
	}
	list, err := f.List(t.Context(), selection("ns", "", ""), 3, "")
	if err != nil || list.Continue == "" {
		t.Fatalf("no position: %v", err)
	}
	f.add(letter("ns", "t", "later", nil))
	rest, err := f.List(t.Context(), selection("ns", "", ""), 0, list.Continue)
	if err != nil || len(rest.Items) != 2 || rest.Continue != "" {
		t.Errorf("%d follow: %v", len(rest.Items), err)
	}
	for _, position := range []string{"x", "e30", "bnVsbA", strings.Repeat("A", 100_000), (&token{Namespace: "../x", Next: 1}).encode()} {
		if _, err := f.List(t.Context(), selection("ns", "", ""), 0, position); !apierrors.IsBadRequest(err) {
			t.Errorf("position %.20q: %v", position, err)
		}
	}
	if _, err := f.List(t.Context(), selection("other", "", ""), 0, list.Continue); !apierrors.IsBadRequest(err) {
		t.Errorf("position of another namespace: %v", err)
	}
	if _, err := f.List(t.Context(), selection("ns", "", ""), 0, (&token{Namespace: "ns", Next: 1, Since: 7, End: 9}).encode()); !apierrors.IsResourceExpired(err) {
		t.Errorf("position of an earlier namespace: %v", err)
	}
	if list, err := f.List(t.Context(), selection("ns", "", ""), 0, (&token{Namespace: "ns", Next: 1 << 63}).encode()); err != nil || len(list.Items) > 0 {
		t.Errorf("position after the end: %v", err)
	}
}

// TestDeleteAll deletes the selected dead letters.
func TestDeleteAll(t *testing.T) {
	f := newFixture(t)
	for i := range 30 {
		f.add(letter("ns", fmt.Sprint("t", i%3), fmt.Sprint(i), nil), letter("other", "t0", fmt.Sprint(i), nil))
	}
	for _, test := range []struct {
		label, field string
		left         int
	}{
		{"", "event.id=7", 29}, {"eventing.knative.dev/trigger=t0", "", 19}, {"", "event.id!=3,lastCode=503", 0}, {"", "", 0},
	} {
		if err := f.DeleteAll(t.Context(), selection("ns", test.label, test.field)); err != nil {
			t.Fatal(err)
		}
		if ids, _ := f.list(selection("ns", "", ""), 0); len(ids) != test.left {
			t.Errorf("%+v leaves %q", test, ids)
		}
	}
	if ids, _ := f.list(selection("other", "", ""), 0); len(ids) != 30 {
		t.Errorf("the other namespace has %d", len(ids))
	}
	if err := f.DeleteAll(t.Context(), selection("none", "", "")); err != nil {
		t.Error(err)
	}
}

// TestMany pages through 100,000 dead letters, and through large ones, with bounded pages.
func TestMany(t *testing.T) {
	if testing.Short() {
		t.Skip("stores 100,000 dead letters")
	}
	const count, writers = 100_000, 500
	f := newFixture(t)
	var writing sync.WaitGroup
	for w := range writers {
		writing.Go(func() {
			for i := range count / writers {
				if err := f.store.Add(t.Context(), letter("ns", "t", fmt.Sprint(w, "-", i), nil)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writing.Wait()
	begin := time.Now()
	ids, pages := f.list(selection("ns", "", ""), 0)
	t.Logf("%d dead letters in %d pages in %s", len(ids), len(pages), time.Since(begin))
	if sets.New(ids...).Len() != count || slices.Max(pages) > maxItems {
		t.Errorf("%d dead letters in %d pages of at most %d", len(ids), len(pages), slices.Max(pages))
	}
	begin = time.Now()
	if ids, _ := f.list(selection("ns", "", "event.id=499-199"), 0); len(ids) != 1 {
		t.Errorf("found %q", ids)
	}
	t.Logf("found one by the ID of its event in %s", time.Since(begin))
	for i := range 10 {
		f.add(letter("large", "t", fmt.Sprint(i), make([]byte, 1<<20)))
	}
	if ids, pages := f.list(selection("large", "", ""), 0); len(ids) != 10 || slices.Max(pages) > 3 {
		t.Errorf("%d large dead letters in pages %v", len(ids), pages)
	}
}

// TestErrors returns errors of the API.
func TestErrors(t *testing.T) {
	for _, test := range []struct {
		err error
		is  func(error) bool
	}{
		{fmt.Errorf("x: %w", deadletter.ErrNotFound), apierrors.IsNotFound},
		{fmt.Errorf("x: %w", eventlog.ErrUnavailable), apierrors.IsServiceUnavailable},
		{eventlog.ErrClosed, apierrors.IsServiceUnavailable},
		{errors.New("x"), apierrors.IsInternalError},
		{apierrors.NewBadRequest("x"), apierrors.IsBadRequest},
	} {
		if err := errorOf(test.err, "x"); !test.is(err) {
			t.Errorf("%v becomes %v", test.err, err)
		}
	}
}

package delivery

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/delivery/internal/machine"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
)

func TestDeliveryRoundTrip(t *testing.T) {
	e := &event.Event{
		Attributes: []event.Attribute{
			{Name: event.ID, Value: "1"}, {Name: event.Source, Value: "/s"}, {Name: event.EventType, Value: "t"},
			{Name: event.TTL, Value: "3", Type: event.Integer},
		},
		Data: []byte("data of 1"),
	}
	d := Delivery{
		Event: e, encoded: e.Append(nil), id: 7, accepted: time.Unix(5, 0), Attempts: 3, due: time.Unix(9, 1), unanswered: true,
		state: machine.State{Record: machine.Owned},
	}
	h := d.header(d.id)
	have, err := decode(d.encode(&h))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, *have, cmp.AllowUnexported(Delivery{}, segment{}, group{})); diff != "" {
		t.Error(diff)
	}
}

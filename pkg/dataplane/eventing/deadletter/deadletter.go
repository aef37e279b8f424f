// Package deadletter is the built-in dead letter store: it has the events of consumers without a dead letter sink that could not be
// delivered.
//
// The dead letters of a namespace are a retained stream of the event log: durable and replicated as the events were, and readable by all
// replicas. A Store bounds them by age, by size for each namespace, and by the size of all: the oldest are evicted, of the namespaces with
// most bytes. Evictions are counted.
package deadletter

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// Letter is a dead letter: an event that could not be delivered to a consumer, and why.
type Letter struct {
	// Sequence is the position in the namespace, in the order in which dead letters were stored. Stored is the time of that. Both are set
	// by the Store.
	Sequence uint64
	Stored   time.Time

	Failure
	// Consumer and ConsumerUID are the Trigger or Subscription, Stream is the Broker or Channel that accepted the event.
	Consumer    eventing.Key
	ConsumerUID types.UID
	Stream      eventing.Key
	// Event is the event as it was sent.
	Event *event.Event
}

// Failure is the last attempt to deliver an event.
type Failure struct {
	// Address is the URL that did not accept the event, without credentials and query. Reply is true if it is the reply address of the
	// consumer, and the event a reply.
	Address string `json:"address,omitempty"`
	Reply   bool   `json:"reply,omitempty"`
	// Attempts is the number of attempts; 0 if it is not known.
	Attempts int `json:"attempts,omitempty"`
	// Code is the HTTP status of the last response, 0 without one. Error describes the failure, Response is the beginning of the body.
	Code     int    `json:"code,omitempty"`
	Error    string `json:"error,omitempty"`
	Response []byte `json:"response,omitempty"`
	// Accepted is the time at which the stream accepted the event, Failed the time of the last attempt.
	Accepted time.Time `json:"accepted"`
	Failed   time.Time `json:"failed"`
}

const (
	// MaxResponse bounds Failure.Response, maxError the size of Failure.Error, in bytes.
	MaxResponse, maxError = 768, 1024
	// reportAttribute carries the Failure of an event on its way to the Store. No endpoint gets it.
	reportAttribute = "knativedeadletter"
)

// Report returns an event with its Failure, as Reported reads it.
func Report(e *event.Event, f Failure) *event.Event {
	f.Error = f.Error[:min(len(f.Error), maxError)]
	f.Response = f.Response[:min(len(f.Response), MaxResponse)]
	text, err := json.Marshal(f)
	if err != nil {
		// The years of times are beyond JSON's.
		text = []byte("{}")
	}
	return e.With(event.Attribute{Name: reportAttribute, Value: string(text)})
}

// Reported returns the event and the Failure that were passed to Report. found is false for an event without a report.
func Reported(e *event.Event) (_ *event.Event, f Failure, found bool) {
	text, found := e.Get(reportAttribute)
	if !found {
		return e, f, false
	}
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		f = Failure{}
	}
	return e.With(event.Attribute{Name: reportAttribute}), f, true
}

// AsSent returns an event with its Failure as dead letter sinks get it (eventing Event Delivery).
func AsSent(e *event.Event, f Failure) *event.Event {
	body := f.Response
	if f.Code == 0 {
		body = []byte(f.Error)
	}
	body = body[:min(len(body), MaxResponse)]
	attributes := []event.Attribute{
		{Name: event.ErrorDest, Value: f.Address},
		{Name: event.ErrorData, Value: base64.StdEncoding.EncodeToString(body)},
		{Name: event.ErrorCode},
	}
	if f.Code != 0 {
		attributes[2] = event.Attribute{Name: event.ErrorCode, Value: strconv.Itoa(f.Code), Type: event.Integer}
	}
	return e.With(attributes...)
}

// Sent is the inverse of AsSent, as far as the event has the Failure.
func Sent(e *event.Event) (*event.Event, Failure) {
	var f Failure
	f.Address, _ = e.Get(event.ErrorDest)
	code, _ := e.Get(event.ErrorCode)
	f.Code, _ = strconv.Atoi(code)
	data, _ := e.Get(event.ErrorData)
	body, err := base64.StdEncoding.DecodeString(data)
	switch {
	case err != nil:
	case f.Code == 0:
		f.Error = string(body)
	default:
		f.Response = body
	}
	return e.With(event.Attribute{Name: event.ErrorDest}, event.Attribute{Name: event.ErrorCode}, event.Attribute{Name: event.ErrorData}), f
}

// version is the first byte of a stored dead letter. The length of the header as a uvarint, the header in JSON and the event follow.
const version = 1

// header is what a stored dead letter has besides its event.
type header struct {
	Failure
	Consumer eventing.Key `json:"consumer"`
	Stream   eventing.Key `json:"stream"`
}

func (l *Letter) encode() ([]byte, error) {
	text, err := json.Marshal(header{l.Failure, l.Consumer, l.Stream})
	if err != nil {
		return nil, fmt.Errorf("encode dead letter: %w", err)
	}
	data := append(make([]byte, 0, 1+binary.MaxVarintLen32+len(text)+l.Event.Size()), version)
	data = binary.AppendUvarint(data, uint64(len(text)))
	return l.Event.Append(append(data, text...)), nil
}

var errDamaged = errors.New("unknown or damaged dead letter")

// decode is the inverse of encode. The letter shares memory with data.
func (l *Letter) decode(data []byte) error {
	if len(data) == 0 || data[0] != version {
		return errDamaged
	}
	size, width := binary.Uvarint(data[1:])
	if width <= 0 || size > uint64(len(data)-1-width) {
		return errDamaged
	}
	rest := data[1+width:]
	var h header
	if err := json.Unmarshal(rest[:size], &h); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	e, err := event.Decode(rest[size:])
	if err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	l.Failure, l.Consumer, l.Stream, l.Event = h.Failure, h.Consumer, h.Stream, e
	return nil
}

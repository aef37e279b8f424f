package trace

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// The form of a record: a byte with its kind and flags; the head, which is the kind of the stream (a byte), the name and the UID of the
// stream, ID and source of the event, and the time of its acceptance; then the fields of the kind. Texts are preceded by their length.
// Numbers are varints, times are nanoseconds since 1970, 0 for none. The namespace of the stream is not in the record, and the namespace
// of a consumer is empty if it is the same.
const (
	kindAcceptance = 1
	kindAttempt    = 2
	kindMask       = 0x0f

	flagCut = 0x10
	// flagReply is set for an acceptance with a Cause.
	flagReply = 0x20
	flagV03   = 0x40
	// flagRedelivered is set for an acceptance of a stored event.
	flagRedelivered = 0x80

	// maxAttributes bounds the names and values of the attributes in an acceptance, maxNamed the consumers of each list there.
	maxAttributes = 8 << 10
	maxNamed      = 1024
)

// appendRecord appends an encoded record. It allocates nothing unless buf is too small.
func appendRecord(buf []byte, r *Record) []byte {
	start := len(buf)
	buf = append(buf, kindAttempt)
	buf = append(buf, kindByte(r.Stream.Kind))
	buf = appendText(buf, r.Stream.Name)
	buf = appendText(buf, string(r.StreamUID))
	buf = appendText(buf, r.ID)
	buf = appendText(buf, r.Source)
	buf = appendTime(buf, r.Accepted)
	if r.Acceptance == nil {
		return appendAttempt(buf, r.Attempt, r.Stream.Namespace)
	}
	var flags byte
	buf, flags = appendAcceptance(buf, r.Acceptance, r.Stream.Namespace)
	buf[start] = kindAcceptance | flags
	return buf
}

func appendAcceptance(buf []byte, a *Acceptance, namespace string) (_ []byte, flags byte) {
	traceID := len(buf)
	buf = append(buf, 0)
	if id, ok := parseTraceID(a.TraceID); ok {
		buf[traceID] = 1
		buf = append(buf, id[:]...)
	}
	buf = appendText(buf, a.Sender)
	buf = appendText(buf, a.Address)
	if a.Cause != (Cause{}) {
		flags |= flagReply
		buf = appendText(buf, a.Cause.ID)
		buf = appendText(buf, a.Cause.Source)
		buf = appendTime(buf, a.Cause.Accepted)
		buf = appendConsumer(buf, a.Cause.Consumer, namespace)
	}
	buf = appendConsumers(buf, a.Matched, namespace)
	buf = appendConsumers(buf, a.Exceeded, namespace)
	buf = binary.AppendUvarint(buf, uint64(a.MatchedCount))
	buf = binary.LittleEndian.AppendUint64(buf, a.Filters)
	if a.Cut {
		flags |= flagCut
	}
	if a.V03 {
		flags |= flagV03
	}
	if a.Redelivered {
		flags |= flagRedelivered
	}
	// The attributes are last and end with the record.
	size := 0
	for i := range a.Attributes {
		attribute := &a.Attributes[i]
		if attribute.Name == event.ID || attribute.Name == event.Source {
			continue
		}
		if len(attribute.Value) > MaxText {
			flags |= flagCut
		}
		if size += len(attribute.Name) + min(len(attribute.Value), MaxText); size > maxAttributes {
			flags |= flagCut
			break
		}
		buf = append(buf, byte(attribute.Type))
		buf = appendText(buf, attribute.Name)
		buf = appendText(buf, attribute.Value)
	}
	return buf, flags
}

func appendAttempt(buf []byte, a *Attempt, namespace string) []byte {
	buf = appendConsumer(buf, a.Consumer, namespace)
	buf = append(buf, byte(a.Role), byte(a.Outcome))
	buf = binary.AppendUvarint(buf, uint64(a.Number))
	buf = appendTime(buf, a.Start)
	buf = binary.AppendVarint(buf, int64(a.Duration))
	buf = appendTime(buf, a.Next)
	buf = appendText(buf, a.Address)
	buf = binary.AppendUvarint(buf, uint64(a.Code))
	buf = appendText(buf, a.Error)
	buf = appendText(buf, a.ReplyID)
	buf = appendText(buf, a.ReplySource)
	return appendTime(buf, a.ReplyAccepted)
}

func appendConsumers(buf []byte, all []eventing.Key, namespace string) []byte {
	all = all[:min(len(all), maxNamed)]
	buf = binary.AppendUvarint(buf, uint64(len(all)))
	for i := range all {
		buf = appendConsumer(buf, all[i], namespace)
	}
	return buf
}

func appendConsumer(buf []byte, c eventing.Key, namespace string) []byte {
	if c.Namespace == namespace {
		c.Namespace = ""
	}
	buf = append(buf, kindByte(c.Kind))
	buf = appendText(buf, c.Namespace)
	return appendText(buf, c.Name)
}

func appendText(buf []byte, text string) []byte {
	text = Cut(text)
	return append(binary.AppendUvarint(buf, uint64(len(text))), text...)
}

func appendTime(buf []byte, t time.Time) []byte {
	if t.IsZero() {
		return append(buf, 0)
	}
	return binary.AppendVarint(buf, t.UnixNano())
}

// kinds are the kinds of objects by the byte that stands for them.
var kinds = [...]eventing.Kind{eventing.Broker, eventing.Channel, eventing.Trigger, eventing.Subscription}

func kindByte(kind eventing.Kind) byte {
	for i, k := range kinds {
		if k == kind {
			return byte(i)
		}
	}
	return byte(len(kinds))
}

// parseTraceID returns the bytes of a trace ID in hexadecimal digits. ok is false if it is invalid.
func parseTraceID(text string) (id [16]byte, ok bool) {
	if len(text) != 2*len(id) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(text))
	return id, err == nil && id != [16]byte{}
}

var errRecord = errors.New("damaged trace record")

// head are the fields that all kinds of records begin with. Its texts share memory with the record.
type head struct {
	kind, flags, stream           byte
	name, uid, id, source, fields []byte
	accepted                      time.Time
}

// decodeHead reads the head of a record.
func decodeHead(data []byte) (h head, err error) {
	r := reader{data: data}
	kind := r.byte()
	h.kind, h.flags, h.stream = kind&kindMask, kind&^kindMask, r.byte()
	h.name, h.uid, h.id, h.source = r.bytes(), r.bytes(), r.bytes(), r.bytes()
	h.accepted = r.time()
	h.fields = r.data
	if r.failed || h.kind != kindAcceptance && h.kind != kindAttempt || int(h.stream) >= len(kinds) {
		return head{}, errRecord
	}
	return h, nil
}

// decodeRecord reads a record of a namespace. The result shares no memory with data.
func decodeRecord(namespace string, data []byte) (Record, error) {
	h, err := decodeHead(data)
	if err != nil {
		return Record{}, err
	}
	return h.record(namespace)
}

// AppendRecords appends records of one namespace to buf, in the form in which replicas exchange them.
func AppendRecords(buf []byte, records []Record) []byte {
	for i := range records {
		record := appendRecord(nil, &records[i])
		buf = append(binary.AppendUvarint(buf, uint64(len(record))), record...)
	}
	return buf
}

// ReadRecords is the inverse of AppendRecords.
func ReadRecords(namespace string, data []byte) (records []Record, err error) {
	r := reader{data: data}
	for len(r.data) > 0 {
		record := r.next(r.uvarint())
		if r.failed {
			return nil, errRecord
		}
		decoded, err := decodeRecord(namespace, record)
		if err != nil {
			return nil, err
		}
		records = append(records, decoded)
	}
	return records, nil
}

// record returns the whole record.
func (h *head) record(namespace string) (Record, error) {
	r := Record{
		Stream:    eventing.Key{Kind: kinds[h.stream], Namespace: namespace, Name: string(h.name)},
		StreamUID: types.UID(h.uid), ID: string(h.id), Source: string(h.source), Accepted: h.accepted,
	}
	fields := reader{data: h.fields}
	if h.kind == kindAcceptance {
		r.Acceptance = fields.acceptance(namespace, h.flags)
	} else {
		r.Attempt = fields.attempt(namespace)
	}
	if fields.failed || len(fields.data) > 0 {
		return Record{}, errRecord
	}
	return r, nil
}

// traceID returns the trace ID of an acceptance, or nil. It shares memory with the record.
func (h *head) traceID() []byte {
	if h.kind != kindAcceptance || len(h.fields) < 17 || h.fields[0] == 0 {
		return nil
	}
	return h.fields[1:17]
}

// reader reads values. After a missing value, all values are zero.
type reader struct {
	data   []byte
	failed bool
}

func (r *reader) acceptance(namespace string, flags byte) *Acceptance {
	a := &Acceptance{Cut: flags&flagCut != 0, V03: flags&flagV03 != 0, Redelivered: flags&flagRedelivered != 0}
	if r.byte() != 0 {
		a.TraceID = hex.EncodeToString(r.next(16))
	}
	a.Sender, a.Address = r.text(), r.text()
	if flags&flagReply != 0 {
		a.Cause = Cause{ID: r.text(), Source: r.text(), Accepted: r.time(), Consumer: r.consumer(namespace)}
	}
	a.Matched, a.Exceeded = r.consumers(namespace), r.consumers(namespace)
	a.MatchedCount = int(r.uvarint())
	if b := r.next(8); b != nil {
		a.Filters = binary.LittleEndian.Uint64(b)
	}
	for !r.failed && len(r.data) > 0 {
		t := event.Type(r.byte())
		a.Attributes = append(a.Attributes, event.Attribute{Type: t, Name: r.text(), Value: r.text()})
	}
	return a
}

func (r *reader) attempt(namespace string) *Attempt {
	return &Attempt{
		Consumer: r.consumer(namespace), Role: Role(r.byte()), Outcome: Outcome(r.byte()), Number: int(r.uvarint()),
		Start: r.time(), Duration: time.Duration(r.varint()), Next: r.time(), Address: r.text(), Code: int(r.uvarint()), Error: r.text(),
		ReplyID: r.text(), ReplySource: r.text(), ReplyAccepted: r.time(),
	}
}

func (r *reader) consumers(namespace string) []eventing.Key {
	n := r.uvarint()
	if n > maxNamed {
		r.failed = true
	}
	var all []eventing.Key
	for i := uint64(0); i < n && !r.failed; i++ {
		all = append(all, r.consumer(namespace))
	}
	return all
}

func (r *reader) consumer(namespace string) (key eventing.Key) {
	kind := int(r.byte())
	if kind >= len(kinds) {
		r.failed = true
		return key
	}
	key = eventing.Key{Kind: kinds[kind], Namespace: r.text(), Name: r.text()}
	if key.Namespace == "" {
		key.Namespace = namespace
	}
	return key
}

func (r *reader) next(n uint64) []byte {
	if r.failed || n > uint64(len(r.data)) {
		r.failed = true
		return nil
	}
	value := r.data[:n:n]
	r.data = r.data[n:]
	return value
}

func (r *reader) byte() byte {
	if b := r.next(1); b != nil {
		return b[0]
	}
	return 0
}

func (r *reader) uvarint() uint64 {
	value, n := binary.Uvarint(r.data)
	if r.failed || n <= 0 {
		r.failed = true
		return 0
	}
	r.data = r.data[n:]
	return value
}

func (r *reader) varint() int64 {
	value, n := binary.Varint(r.data)
	if r.failed || n <= 0 {
		r.failed = true
		return 0
	}
	r.data = r.data[n:]
	return value
}

func (r *reader) bytes() []byte {
	n := r.uvarint()
	if n > MaxText {
		r.failed = true
	}
	return r.next(n)
}

func (r *reader) text() string { return string(r.bytes()) }

func (r *reader) time() time.Time {
	if n := r.varint(); n != 0 {
		return time.Unix(0, n)
	}
	return time.Time{}
}

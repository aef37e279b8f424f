package event

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/cloudevents/sdk-go/v2/binding"
	"github.com/cloudevents/sdk-go/v2/binding/format"
	"github.com/cloudevents/sdk-go/v2/binding/spec"
	cehttp "github.com/cloudevents/sdk-go/v2/protocol/http"
)

// ErrNotEvent is matched by the errors of messages that are not valid CloudEvents. Their text follows the name of a message.
var ErrNotEvent = errors.New("is not a CloudEvent")

// ErrFormat is matched by the errors of events whose format is unknown. They match ErrNotEvent too.
var ErrFormat = errors.New("the event format is not supported")

const (
	contentType = "Content-Type"

	specVersion = "specversion"
	// version10 and version03 are the versions of CloudEvents that are accepted.
	version10, version03 = "1.0", "0.3"

	specVersionHeader = "Ce-Specversion"
)

// FromRequest returns the events of an HTTP request with canonical header names: one in binary or structured mode
// (eventing Minimum supported protocol), any number in batched mode. The data of an event in binary mode is body
// itself. Errors match ErrNotEvent or ErrHeaders; one invalid event rejects its batch.
//
// An empty body is no data, unless an empty text is valid for its content type, as for all types but JSON.
func FromRequest(header http.Header, body []byte) ([]*Event, error) {
	events, err := read(header, body)
	switch {
	case errors.Is(err, ErrHeaders):
		return nil, fmt.Errorf("has headers that are too large: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrNotEvent, err)
	}
	return events, nil
}

// FromResponse returns the event of an HTTP response like FromRequest. A batch is no event (eventing Derived (Reply)
// Events).
func FromResponse(header http.Header, body []byte) (*Event, error) {
	if cehttp.NewMessage(header, nil).ReadEncoding() == binding.EncodingBatch {
		return nil, fmt.Errorf("%w: it is a batch", ErrNotEvent)
	}
	events, err := FromRequest(header, body)
	if err != nil {
		return nil, err
	}
	return events[0], nil
}

func read(header http.Header, body []byte) ([]*Event, error) {
	headers, err := carried(header)
	if err != nil {
		return nil, err
	}
	message := cehttp.NewMessage(header, nil)
	switch message.ReadEncoding() {
	case binding.EncodingStructured:
		return readStructured(body, headers)
	case binding.EncodingBatch:
		return readBatch(body, headers)
	}
	versions := header[specVersionHeader]
	if len(versions) == 0 {
		mediaType := header.Get(contentType)
		if format.IsFormat(strings.ToLower(mediaType)) {
			return nil, fmt.Errorf("%w: %.80q", ErrFormat, mediaType)
		}
		return nil, errors.New("neither is there a header ce-specversion, nor is the content type one of " +
			format.JSON.MediaType() + " and " + format.JSONBatch.MediaType())
	}
	if err := checkVersion(versions[0]); err != nil {
		return nil, err
	}
	// The SDK defines the attributes of the version.
	return readBinary(message, header, headers, body)
}

func checkVersion(given string) error {
	if given != version10 && given != version03 {
		return fmt.Errorf("attribute '%s' must be '%s' or '%s', not %.40q", specVersion, version10, version03, given)
	}
	return nil
}

func readBinary(message *cehttp.Message, header http.Header, headers []Header, body []byte) ([]*Event, error) {
	count, err := countAttributes(header)
	if err != nil {
		return nil, err
	}
	v := &visitor{}
	v.V03 = header[specVersionHeader][0] == version03
	v.Attributes = make([]Attribute, 0, count)
	// The context is not used, and nil.
	if err := message.ReadBinary(message.Context(), v); err != nil {
		return nil, err
	}
	// The order of headers is random; the order of attributes is visible in errors and in structured mode.
	slices.SortFunc(v.Attributes, func(x, y Attribute) int { return strings.Compare(x.Name, y.Name) })
	if err := v.validate(); err != nil {
		return nil, err
	}
	if mediaType, found := v.Get(DataContentType); len(body) > 0 || found && !isJSON(mediaType) {
		v.Data = body
		if body == nil {
			v.Data = []byte{}
		}
	}
	v.Headers = headers
	v.list[0] = &v.Event
	return v.list[:], nil
}

// countAttributes returns an upper bound of the number of attributes in the headers of an event.
func countAttributes(header http.Header) (int, error) {
	const prefix = "Ce-"
	count := 0
	for key, values := range header {
		if !strings.HasPrefix(key, prefix) && key != contentType {
			continue
		}
		if len(values) != 1 {
			return 0, fmt.Errorf("header '%s' may not be given twice", strings.ToLower(key))
		}
		if key == prefix {
			return 0, errors.New("header 'ce-' names no attribute")
		}
		count++
	}
	return count, nil
}

// visitor makes an event from the attributes that the SDK finds in a message in binary mode.
type visitor struct {
	Event
	// list saves an allocation.
	list [1]*Event
}

var _ binding.BinaryWriter = (*visitor)(nil)

// SetAttribute adds an attribute that CloudEvents defines. The content type is the header's value, unchanged.
func (v *visitor) SetAttribute(attribute spec.Attribute, value any) error {
	s, ok := value.(string)
	switch kind := attribute.Kind(); {
	case !ok:
		return fmt.Errorf("attribute '%s' must be a string", attribute.Name())
	case kind == spec.SpecVersion, kind == spec.DataContentType && s == "":
	case kind == spec.DataContentType:
		v.Attributes = append(v.Attributes, Attribute{Name: DataContentType, Value: s})
	default:
		v.Attributes = append(v.Attributes, Attribute{Name: attribute.Name(), Value: unescape(s)})
	}
	return nil
}

// SetExtension adds an extension.
func (v *visitor) SetExtension(name string, value any) error {
	s, ok := value.(string)
	if !ok {
		return fmt.Errorf("attribute %.40q must be a string", name)
	}
	v.Attributes = append(v.Attributes, Attribute{Name: name, Value: unescape(s)})
	return nil
}

// Start does nothing.
func (v *visitor) Start(context.Context) error { return nil }

// SetData does nothing: the message is read without its body.
func (v *visitor) SetData(io.Reader) error { return nil }

// End does nothing.
func (v *visitor) End(context.Context) error { return nil }

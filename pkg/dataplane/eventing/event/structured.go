package event

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"unicode/utf8"
)

// The JSON format is read and written here because the SDK changes events: the order of attributes, the form of times and URIs,
// white space and escapes of JSON data; and it accepts and changes invalid ones (TestFidelity, TestLoss).

const (
	dataMember   = "data"
	base64Member = "data_base64"
	// base64Encoding is the value of DataContentEncoding.
	base64Encoding = "base64"
)

// readStructured reads an event in the JSON format (CloudEvents JSON Event Format 1.0.2).
func readStructured(body []byte, headers []Header) ([]*Event, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	e, err := readObject(decoder)
	if err != nil {
		return nil, err
	}
	if err := end(decoder); err != nil {
		return nil, err
	}
	e.Headers = headers
	return []*Event{e}, nil
}

// readBatch reads an array of events. It may be empty.
func readBatch(body []byte, headers []Header) ([]*Event, error) {
	decoder := json.NewDecoder(bytes.NewReader(body))
	if err := begin(decoder, '[', "a JSON array"); err != nil {
		return nil, err
	}
	events := []*Event{}
	for decoder.More() {
		e, err := readObject(decoder)
		if err != nil {
			return nil, fmt.Errorf("event [%d] of the batch: %w", len(events), err)
		}
		e.Headers = headers
		events = append(events, e)
	}
	if _, err := decoder.Token(); err != nil {
		return nil, syntax(err)
	}
	if err := end(decoder); err != nil {
		return nil, err
	}
	return events, nil
}

func begin(decoder *json.Decoder, delimiter json.Delim, want string) error {
	token, err := decoder.Token()
	if err != nil {
		return syntax(err)
	}
	if token != delimiter {
		return fmt.Errorf("it must be %s", want)
	}
	return nil
}

func end(decoder *json.Decoder) error {
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("nothing may follow the end of the JSON")
	}
	return nil
}

func syntax(err error) error {
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("it must be valid JSON: %w", err)
}

// members holds the members of an event that are not ordinary attributes. A missing member is nil.
type members struct{ version, data, base64 json.RawMessage }

// readObject reads one event.
func readObject(decoder *json.Decoder) (*Event, error) {
	if err := begin(decoder, '{', "a JSON object"); err != nil {
		return nil, err
	}
	e := &Event{Structured: true}
	var m members
	var value json.RawMessage
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return nil, syntax(err)
		}
		name, _ := token.(string)
		target := m.named(name)
		switch {
		case target == nil:
			target = &value
		case *target != nil:
			return nil, fmt.Errorf("member '%s' may not be given twice", name)
		}
		if err := decoder.Decode(target); err != nil {
			return nil, syntax(err)
		}
		if target == &value {
			if err := e.add(name, value); err != nil {
				return nil, err
			}
		}
	}
	if _, err := decoder.Token(); err != nil {
		return nil, syntax(err)
	}
	return e, e.complete(&m)
}

func (m *members) named(name string) *json.RawMessage {
	switch name {
	case specVersion:
		return &m.version
	case dataMember:
		return &m.data
	case base64Member:
		return &m.base64
	}
	return nil
}

// add adds an attribute with a JSON value. Null is ignored.
func (e *Event) add(name string, value json.RawMessage) error {
	// All names are validated later; errors before that would contain this one.
	if !isName(name) {
		return (&Attribute{Name: name}).validate()
	}
	if len(e.Attributes) == maxAttributes {
		return fmt.Errorf("it may have at most %d attributes", maxAttributes)
	}
	a := Attribute{Name: name}
	switch value[0] {
	case 'n':
		return nil
	case '"':
		s, err := text(value)
		if err != nil {
			return fmt.Errorf("attribute '%s' %w", name, err)
		}
		a.Value = s
	case 't', 'f':
		a.Value, a.Type = string(value), Boolean
	default:
		number, err := strconv.ParseInt(string(value), 10, 32)
		if err != nil {
			return fmt.Errorf("attribute '%s' must be a string, a boolean or an integer of 32 bits", name)
		}
		a.Value, a.Type = strconv.FormatInt(number, 10), Integer
	}
	e.Attributes = append(e.Attributes, a)
	return nil
}

// complete checks the event and adds its data.
func (e *Event) complete(m *members) error {
	given := ""
	if m.version != nil {
		if m.version[0] != '"' {
			return fmt.Errorf("attribute '%s' must be a string", specVersion)
		}
		var err error
		if given, err = text(m.version); err != nil {
			return fmt.Errorf("attribute '%s' %w", specVersion, err)
		}
	}
	if err := checkVersion(given); err != nil {
		return err
	}
	e.V03 = given == version03
	if err := e.validate(); err != nil {
		return err
	}
	if string(m.base64) == "null" {
		m.base64 = nil
	}
	mediaType, typed := e.Get(DataContentType)
	if e.V03 {
		return e.completeV03(m, mediaType, typed)
	}
	switch {
	case m.base64 != nil && m.data != nil:
		return fmt.Errorf("member '%s' may not be given besides '%s'", base64Member, dataMember)
	case m.base64 != nil:
		return e.decodeData(base64Member, m.base64)
	case m.data == nil:
	case !typed || isJSON(mediaType):
		e.Data = m.data
	case m.data[0] == '"':
		s, err := text(m.data)
		if err != nil {
			return fmt.Errorf("member '%s' %w", dataMember, err)
		}
		e.Data = []byte(s)
	case m.data[0] != 'n':
		return fmt.Errorf("member '%s' must be a string, as its content type is '%.80s'", dataMember, mediaType)
	}
	return nil
}

// decodeData sets the data to the bytes that a member has as a string of base64.
func (e *Event) decodeData(member string, value json.RawMessage) error {
	data := []byte{}
	if err := json.Unmarshal(value, &data); err != nil || value[0] != '"' {
		return fmt.Errorf("member '%s' must be a string of base64 with padding", member)
	}
	e.Data = data
	return nil
}

// completeV03 adds the data of an event of version 0.3, where an attribute marks base64.
func (e *Event) completeV03(m *members, mediaType string, typed bool) error {
	encoding, encoded := e.Get(DataContentEncoding)
	switch {
	case m.base64 != nil:
		return fmt.Errorf("member '%s' may not be given with %s '%s'", base64Member, specVersion, version03)
	case encoded && encoding != base64Encoding:
		return fmt.Errorf("attribute '%s' must be '%s'", DataContentEncoding, base64Encoding)
	case m.data == nil:
	case encoded:
		return e.decodeData(dataMember, m.data)
	case m.data[0] == '"' && typed && !isJSON(mediaType):
		s, err := text(m.data)
		if err != nil {
			return fmt.Errorf("member '%s' %w", dataMember, err)
		}
		e.Data = []byte(s)
	default:
		e.Data = m.data
	}
	return nil
}

// text returns a JSON string.
func text(value json.RawMessage) (string, error) {
	// Package json replaces bytes that are not UTF-8.
	if !utf8.Valid(value) {
		return "", errUnicode
	}
	if bytes.IndexByte(value, '\\') < 0 {
		return string(value[1 : len(value)-1]), nil
	}
	var s string
	err := json.Unmarshal(value, &s)
	return s, err
}

// MarshalStructured returns the event in the JSON format (eventing Minimum supported protocol). JSON data is embedded
// byte for byte, text in UTF-8 as a string, other data as base64.
func (e *Event) MarshalStructured() ([]byte, error) {
	var b bytes.Buffer
	b.Grow(len(e.Data)*4/3 + 512)
	b.WriteString(`{"` + specVersion + `":"` + e.version() + `"`)
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	str := func(s string) error {
		if err := encoder.Encode(s); err != nil {
			return err
		}
		// The encoder ends values with a new line.
		b.Truncate(b.Len() - 1)
		return nil
	}
	for i := range e.Attributes {
		a := &e.Attributes[i]
		b.WriteString(`,"` + a.Name + `":`)
		if a.Type != String {
			b.WriteString(a.Value)
		} else if err := str(a.Value); err != nil {
			return nil, fmt.Errorf("encode attribute '%s': %w", a.Name, err)
		}
	}
	mediaType, typed := e.Get(DataContentType)
	_, encoded := e.Get(DataContentEncoding)
	encoded = encoded && e.V03
	switch {
	case e.Data == nil:
	case !encoded && (!typed || isJSON(mediaType)) && json.Valid(e.Data) && utf8.Valid(e.Data):
		b.WriteString(`,"` + dataMember + `":`)
		b.Write(e.Data)
	case !encoded && typed && isText(mediaType) && utf8.Valid(e.Data):
		b.WriteString(`,"` + dataMember + `":`)
		if err := str(string(e.Data)); err != nil {
			return nil, fmt.Errorf("encode data: %w", err)
		}
	default:
		if e.V03 && !encoded {
			b.WriteString(`,"` + DataContentEncoding + `":"` + base64Encoding + `"`)
		}
		member := base64Member
		if e.V03 {
			member = dataMember
		}
		b.WriteString(`,"` + member + `":"`)
		b.Write(base64.StdEncoding.AppendEncode(b.AvailableBuffer(), e.Data))
		b.WriteByte('"')
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

package event

import (
	"errors"
	"fmt"
	"mime"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"
)

// Limits of the attributes of an event, names and values together. Recipients accept headers of this size.
const (
	maxAttributes     = 256
	maxAttributeBytes = 64 << 10
)

// validate checks the attributes of an event (CloudEvents 1.0.2, Context Attributes). Errors name the attribute and
// the allowed values.
func (e *Event) validate() error {
	if len(e.Attributes) > maxAttributes {
		return fmt.Errorf("it may have at most %d attributes", maxAttributes)
	}
	size := 0
	for i := range e.Attributes {
		a := &e.Attributes[i]
		if err := a.validate(); err != nil {
			return err
		}
		if named(e.Attributes[:i], a.Name) {
			return fmt.Errorf("attribute '%s' may not be given twice", a.Name)
		}
		size += len(a.Name) + len(a.Value)
	}
	if size > maxAttributeBytes {
		return fmt.Errorf("its attributes may take up at most %d bytes", maxAttributeBytes)
	}
	for _, required := range [...]string{ID, Source, EventType} {
		if !named(e.Attributes, required) {
			return fmt.Errorf("attribute '%s' must be given", required)
		}
	}
	return nil
}

func (a *Attribute) validate() error {
	if !isName(a.Name) {
		return fmt.Errorf("attribute name %.40q must consist of lower case letters and digits", a.Name)
	}
	if err := checkString(a.Value); err != nil {
		return fmt.Errorf("attribute '%s' %w", a.Name, err)
	}
	allowed := ""
	switch a.Name {
	case ID, EventType, Subject:
		if a.Value == "" || a.Type != String {
			allowed = "a non-empty string"
		}
	case Source:
		if a.Value == "" || a.Type != String || !isURIReference(a.Value) {
			allowed = "a non-empty URI reference"
		}
	case Time:
		if _, err := parseTime(a.Value); err != nil || a.Type != String {
			allowed = "a timestamp by RFC 3339"
		}
	case DataContentType:
		if a.Type != String || !isMediaType(a.Value) {
			allowed = "a media type by RFC 2046"
		}
	case DataSchema:
		if a.Type != String || !isURI(a.Value) {
			allowed = "an absolute URI"
		}
	case "data", specVersion:
		return fmt.Errorf("attribute name '%s' may not be used for an extension", a.Name)
	}
	if allowed != "" {
		return fmt.Errorf("attribute '%s' must be %s, not %.80q", a.Name, allowed, a.Value)
	}
	return nil
}

func isName(name string) bool {
	for i := 0; i < len(name); i++ {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

var (
	errUnicode   = errors.New("must be valid Unicode")
	errCharacter = errors.New("may not contain control characters and noncharacters of Unicode")
)

// checkString checks that a value is a String (CloudEvents 1.0.2, Type System).
func checkString(s string) error {
	ascii := true
	for i := 0; i < len(s); i++ {
		if s[i] < ' ' || s[i] == 0x7f {
			return errCharacter
		}
		ascii = ascii && s[i] < utf8.RuneSelf
	}
	if ascii {
		return nil
	}
	if !utf8.ValidString(s) {
		return errUnicode
	}
	for _, r := range s {
		if r >= 0x80 && r <= 0x9f || r >= 0xfdd0 && r <= 0xfdef || r&0xfffe == 0xfffe {
			return errCharacter
		}
	}
	return nil
}

// isURIReference is as lenient as package url: a source may have spaces, because the escapes of a source from a sender
// that does not percent-encode headers are decoded.
func isURIReference(s string) bool {
	if isPlainPath(s) {
		return true
	}
	_, err := url.Parse(s)
	return err == nil
}

// isPlainPath reports whether a reference is one of the common valid ones without a scheme, without parsing it.
func isPlainPath(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '-' || c > '9') && c != '_' && c != '~' {
			return false
		}
	}
	return !strings.HasPrefix(s, "//")
}

func isURI(s string) bool {
	u, err := url.Parse(s)
	return err == nil && u.IsAbs()
}

func parseTime(s string) (time.Time, error) {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		// The letters T and Z may be lower case (RFC 3339, 5.6).
		return time.Parse(time.RFC3339Nano, strings.ToUpper(s))
	}
	return t, nil
}

func isMediaType(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] >= utf8.RuneSelf {
			return false
		}
	}
	kind, subtype, found := strings.Cut(s, "/")
	if !found {
		return false
	}
	if isToken(kind) && isToken(subtype) {
		return true
	}
	mediaType, _, err := mime.ParseMediaType(s)
	return err == nil && strings.IndexByte(mediaType, '/') >= 0
}

// isToken reports whether s is a token (RFC 7230, 3.2.6) of the characters that are common in media types.
func isToken(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '+' && c != '-' && c != '.' && c != '_' {
			return false
		}
	}
	return s != ""
}

package event

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestCodec checks that the log returns unchanged events.
func TestCodec(t *testing.T) {
	for name, e := range map[string]*Event{
		"empty":      {},
		"empty data": {Data: []byte{}},
		"0.3":        {V03: true, Data: []byte("x")},
		"full": {
			Attributes: append(strs("id", "1", "source", "", "ext", strings.Repeat("x", 300)), Attribute{"n", "1", Integer}, Attribute{"b", "true", Boolean}),
			Data:       []byte{0, 1, 2}, Structured: true,
			Headers: []Header{{"b3", "x"}, {"tracestate", ""}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			encoded := e.Append([]byte("before"))
			if size := len(encoded) - len("before"); size > e.Size() {
				t.Errorf("the encoding has %d bytes, more than Size, which is %d", size, e.Size())
			}
			got, err := Decode(encoded[len("before"):])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(e, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestDecodeMalformed checks that data other than a complete event is rejected.
func TestDecodeMalformed(t *testing.T) {
	e := &Event{Attributes: append(strs("id", "1"), Attribute{"n", "1", Boolean}), Headers: []Header{{"b3", "x"}}, Data: []byte("data")}
	encoded := e.Append(nil)
	for n := range encoded {
		if got, err := Decode(encoded[:n]); err == nil {
			t.Errorf("the first %d of %d bytes gave %v, want an error", n, len(encoded), got)
		}
	}
	changed := func(at int, to byte) []byte {
		other := append([]byte(nil), encoded...)
		other[at] = to
		return other
	}
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"more":               {append(append([]byte(nil), encoded...), 0), "1 bytes follow its end"},
		"version":            {changed(0, 2), "its version is 2 instead of 1"},
		"flags":              {changed(1, 8), "its flags are 0x8"},
		"data without flag":  {changed(1, 0), "it has data, its flags say none"},
		"type":               {changed(5, 1<<typeBits|3), `attribute "id" has the unknown type 3`},
		"huge numbers":       {[]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0x07, 0}, "it ends early"},
		"overlong number":    {append([]byte{1, 0}, "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x00\x00"...), "it ends early"},
		"huge lengths":       {[]byte{1, 0, 1, 0, 0xff, 0xff, 0xff, 0xff, 0x07, 0xff, 0xff, 0xff, 0xff, 0x07, 0}, "it ends early"},
		"number of 64 bits":  {append([]byte{1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01}, 0), "it ends early"},
		"length of the data": {[]byte{1, 2, 0, 0, 9}, "it ends early"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Decode(test.data); err == nil || !strings.HasSuffix(err.Error(), test.want) {
				t.Errorf("got %v, %v, want an error that ends with %q", got, err, test.want)
			}
		})
	}
}

package event

import (
	"testing"

	"github.com/cloudevents/sdk-go/v2/binding/format"
	cloudevent "github.com/cloudevents/sdk-go/v2/event"
)

// TestFidelity reads events in the JSON format and writes them. The SDK changes each of them, so the package has its own reader and writer.
func TestFidelity(t *testing.T) {
	const start = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for name, members := range map[string]string{
		"order of attributes": `"zeta":"1","alpha":"2"`,
		"offset of a time":    `"time":"2026-01-02T03:04:05+01:00"`,
		"fraction of a time":  `"time":"2026-01-02T03:04:05.600Z"`,
		"form of a URI":       `"dataschema":"HTTP://x/a"`,
		"white space of data": `"data":{"a" :  1}`,
		"escapes of data":     `"data":"<a>&"`,
		"escapes of text":     `"datacontenttype":"text/plain","data":"<a>&"`,
	} {
		t.Run(name, func(t *testing.T) {
			in := start + "," + members + "}"
			events, err := readStructured([]byte(in), nil)
			if err != nil {
				t.Fatal(err)
			}
			out, err := events[0].MarshalStructured()
			if err != nil || string(out) != in {
				t.Errorf("wrote %s, %v, want %s", out, err, in)
			}
			if out := throughSDK(t, in); out == in {
				t.Errorf("the SDK also keeps %s", in)
			}
		})
	}
}

// TestLoss covers events that this package rejects. The SDK accepts them, and loses parts that it cannot represent.
func TestLoss(t *testing.T) {
	const start = `{"specversion":"1.0","id":"1","source":"/s","type":"t"`
	for name, test := range map[string]struct{ in, sdk string }{
		"number that is not an integer": {start + `,"n":1.5}`, start + `,"n":1}`},
		"attribute given twice":         {start + `,"n":"1","n":"2"}`, start + `,"n":"2"}`},
		"data given twice":              {start + `,"data":1,"data":2}`, start + `,"data":2}`},
		"name in upper case":            {start + `,"N":"1"}`, start + `,"n":"1"}`},
	} {
		t.Run(name, func(t *testing.T) {
			if events, err := readStructured([]byte(test.in), nil); err == nil {
				t.Errorf("read %v, want an error", events)
			}
			if out := throughSDK(t, test.in); out != test.sdk {
				t.Errorf("the SDK writes %s, want %s", out, test.sdk)
			}
		})
	}
}

// throughSDK reads an event with the SDK and writes it.
func throughSDK(t *testing.T, in string) string {
	t.Helper()
	var e cloudevent.Event
	if err := format.JSON.Unmarshal([]byte(in), &e); err != nil {
		t.Fatal(err)
	}
	out, err := format.JSON.Marshal(&e)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

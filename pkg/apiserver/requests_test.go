package apiserver

import (
	"io"
	"strings"
	"testing"
	"testing/iotest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

func TestUTF8Body(t *testing.T) {
	for text, valid := range map[string]bool{
		"":                       true,
		"plain":                  true,
		"zwölf €uro 🎈":           true,
		"\xff":                   false,
		"a\xffb":                 false,
		"cut \xe2\x82":           false,
		"cut \xf0\x9f\x8e":       false,
		"\x80 alone":             false,
		"surrogate \xed\xa0\x80": false,
		"overlong \xc0\xaf":      false,
	} {
		for name, reader := range map[string]func(io.Reader) io.Reader{
			"at once":        func(r io.Reader) io.Reader { return r },
			"byte by byte":   iotest.OneByteReader,
			"data with EOF":  iotest.DataErrReader,
			"half as wished": iotest.HalfReader,
		} {
			body := &utf8Body{ReadCloser: io.NopCloser(reader(strings.NewReader(text)))}
			got, err := io.ReadAll(body)
			if valid && (err != nil || string(got) != text) {
				t.Errorf("%q %s: got %q, %v", text, name, got, err)
			}
			if !valid && !apierrors.IsBadRequest(err) {
				t.Errorf("%q %s: got %v, want a bad request", text, name, err)
			}
		}
	}
}

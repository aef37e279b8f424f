package v1

import (
	"net/url"
	"strings"
	"testing"
)

// TestTailParameters names wrong parameters of the subresource tail.
func TestTailParameters(t *testing.T) {
	for query, want := range map[string]string{
		"":                                  "",
		"filter=type+%3D+'a'&data=true":     "",
		"pretty=true&timeout=1s&data=false": "",
		"filtre=x":                          "unknown parameter 'filtre'; valid parameters are filter, data",
		"data=yes":                          "parameter 'data' must be 'true' or 'false', not 'yes'",
		"data=true&data=true":               "parameter 'data' must be set only once",
		"filter=type+%3D":                   "parameter 'filter' must be a CloudEvents SQL expression",
		"filter=" + strings.Repeat("(", 40): "parameter 'filter' must",
	} {
		values, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		var out BrokerTailOptions
		err = convertTailParameters(&values, &out, nil)
		if (err == nil) != (want == "") || err != nil && !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", query, err, want)
		}
		if want == "" && (out.Filter != values.Get("filter") || out.Data != (values.Get("data") == "true")) {
			t.Errorf("%s: %+v", query, out)
		}
	}
}

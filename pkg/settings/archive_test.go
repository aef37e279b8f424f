package settings

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// TestParseArchive parses the keys of an archive, and names wrong values.
func TestParseArchive(t *testing.T) {
	for name, test := range map[string]struct {
		data map[string]string
		want *eventing.Archive
		err  string
	}{
		"no keys":            {nil, nil, ""},
		"other keys":         {map[string]string{"channel-template-spec": "apiVersion: messaging.knative.dev/v1"}, nil, ""},
		"retention":          {map[string]string{KeyArchiveRetention: "24h"}, &eventing.Archive{Retention: 24 * time.Hour}, ""},
		"retention and size": {map[string]string{KeyArchiveRetention: "1m", KeyArchiveMaxBytes: "1Mi"}, &eventing.Archive{Retention: time.Minute, MaxBytes: 1 << 20}, ""},
		"decimal size":       {map[string]string{KeyArchiveRetention: "1h", KeyArchiveMaxBytes: "5G"}, &eventing.Archive{Retention: time.Hour, MaxBytes: 5e9}, ""},
		"disabled":           {map[string]string{KeyArchiveRetention: "0", KeyArchiveMaxBytes: "1Gi"}, nil, ""},
		"disabled with unit": {map[string]string{KeyArchiveRetention: "0s"}, nil, ""},
		"size alone":         {map[string]string{KeyArchiveMaxBytes: "1Gi"}, nil, `key 'archive-max-bytes' of orders must have 'archive-retention' beside it`},
		"spaces":             {map[string]string{KeyArchiveRetention: " 24h\n"}, &eventing.Archive{Retention: 24 * time.Hour}, ""},
		"no duration":        {map[string]string{KeyArchiveRetention: "a week"}, nil, `key 'archive-retention' of orders must be 0 or a duration of at least 1m, such as 24h, not "a week"`},
		"empty":              {map[string]string{KeyArchiveRetention: ""}, nil, `key 'archive-retention' of orders must be`},
		"short":              {map[string]string{KeyArchiveRetention: "59s"}, nil, `key 'archive-retention' of orders must be`},
		"negative":           {map[string]string{KeyArchiveRetention: "-1h"}, nil, `key 'archive-retention' of orders must be`},
		"no size":            {map[string]string{KeyArchiveRetention: "1h", KeyArchiveMaxBytes: "much"}, nil, `key 'archive-max-bytes' of orders must be a number of bytes of at least 1Mi, such as 512Mi, not "much"`},
		"small size":         {map[string]string{KeyArchiveRetention: "1h", KeyArchiveMaxBytes: "1Ki"}, nil, `key 'archive-max-bytes' of orders must be`},
		"disabled, no size":  {map[string]string{KeyArchiveRetention: "0", KeyArchiveMaxBytes: "much"}, nil, `key 'archive-max-bytes' of orders must be`},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseArchive("orders", test.data)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

// TestBrokerConfig reports faults and keys without effect of the ConfigMap in the system namespace.
func TestBrokerConfig(t *testing.T) {
	if _, faults := set(map[string]map[string]string{BrokerConfigMapName: {KeyArchiveRetention: "x"}}); faults[BrokerConfigMapName] == nil {
		t.Error("a wrong value is no fault")
	}
	data := map[string]string{KeyArchiveRetention: "24h", KeyArchiveMaxBytes: "1Gi", "channel-template-spec": "", "archive-retentoin": "1h"}
	if _, faults := set(map[string]map[string]string{BrokerConfigMapName: data}); len(faults) > 0 {
		t.Errorf("faults %v", faults)
	}
	want := []UnusedKey{{"archive-retentoin", unknown}, {"channel-template-spec", noChannel}}
	if got := Unused(BrokerConfigMapName, data); !slices.Equal(got, want) {
		t.Errorf("without effect: %v, want %v", got, want)
	}
}

package gateway

import (
	"encoding/json"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

// TestEntryFormat compares the times, durations and strings of lines with their formats in the standard library.
func TestEntryFormat(t *testing.T) {
	var clock stamp
	at := time.Date(2026, 11, 30, 23, 59, 58, 0, time.FixedZone("", 3600))
	for _, text := range []string{"", "a", "/path?q=1", `"`, `a\b`, "a\x00b", "\x7f", "é", "a\xffb", strings.Repeat("x", maxLogged+1), strings.Repeat("x", 100) + "é"} {
		for range 100 {
			at = at.Add(time.Duration(rand.Int64N(int64(300 * time.Millisecond))))
			took := time.Duration(rand.Int64N(int64(time.Minute) * 10))
			line := (&entry{time: at, duration: took, namespace: text}).appendTo(nil, &clock)
			var got struct {
				Time      string
				Duration  json.Number
				Namespace string
			}
			if err := json.Unmarshal(line, &got); err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if want := at.UTC().Format("2006-01-02T15:04:05.000000Z07:00"); got.Time != want {
				t.Fatalf("got the time %s, want %s", got.Time, want)
			}
			seconds, err := got.Duration.Float64()
			whole, micros, _ := strings.Cut(got.Duration.String(), ".")
			if err != nil || time.Duration(seconds*float64(time.Second)).Round(time.Microsecond) != took.Round(time.Microsecond) || whole == "" || len(micros) != 6 {
				t.Fatalf("got the duration %s, want %v", got.Duration, took)
			}
			if want := strings.ToValidUTF8(text[:min(len(text), maxLogged)], "\ufffd"); got.Namespace != want {
				t.Fatalf("got %q, want %q", got.Namespace, want)
			}
		}
	}
}

// BenchmarkEntry formats a line of the access log.
func BenchmarkEntry(b *testing.B) {
	e := entry{
		time: time.Now(), duration: 1234 * time.Microsecond, status: 200, namespace: "default", revision: "hello-00001", instance: "hello-00001-6b7c",
		trace: &trace{}, responseBytes: 1024,
	}
	var line []byte
	var clock stamp
	b.ReportAllocs()
	for b.Loop() {
		line = e.appendTo(line[:0], &clock)
	}
}

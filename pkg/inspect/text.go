package inspect

import (
	"strconv"
	"strings"
	"time"
	"unicode"

	"k8s.io/apimachinery/pkg/api/resource"
)

// Join joins the texts that are not empty.
func Join(separator string, texts ...string) string {
	var present []string
	for _, text := range texts {
		if text != "" {
			present = append(present, text)
		}
	}
	return strings.Join(present, separator)
}

// Clock returns a time as the tables of the server show it, or in full if wide is true.
func Clock(t time.Time, wide bool) string {
	if wide {
		return t.UTC().Format("2006-01-02T15:04:05.000Z")
	}
	return t.UTC().Format("15:04:05.000")
}

// Milliseconds returns a duration in a readable form. Shorter ones than a millisecond are 0 in the API.
func Milliseconds(n int64) string {
	if n == 0 {
		return "<1ms"
	}
	return (time.Duration(n) * time.Millisecond).String()
}

// Decimal returns a quantity as a number: averages are exact to three decimal places, such as 4m for 0.004.
func Decimal(q *resource.Quantity) string {
	return strconv.FormatFloat(q.AsApproximateFloat64(), 'f', -1, 64)
}

// Visible returns a text without control characters, so that a text of others can neither control the terminal nor imitate lines.
func Visible(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsControl(r):
			return unicode.ReplacementChar
		}
		return r
	}, text)
}

package v1

import (
	"errors"
	"math"
	"regexp"
	"strings"
	"time"

	"github.com/sosodev/duration"
)

const (
	// maxDurationLength bounds the length of a duration in bytes. Useful values are far shorter.
	maxDurationLength = 64
	// maxDurationHours is the maximum duration in hours. It leaves a margin for rounding below the maximum
	// time.Duration.
	maxDurationHours = float64(math.MaxInt64/time.Hour - 1)
)

// isoDuration is the grammar of ParseDuration: every component occurs at most once and in order. The
// duration package is more lenient (it parses 'P5T5S' as 55 seconds), so it only receives matching values.
var isoDuration = func() *regexp.Regexp {
	const number = `\d+(?:[.,]\d+)?`
	return regexp.MustCompile(`^P(?:` + number + `W)?(?:` + number + `D)?` +
		`(?:T(?:` + number + `H)?(?:` + number + `M)?(?:` + number + `S)?)?$`)
}()

// yearsOrMonths finds the components of a duration whose length depends on the calendar.
var yearsOrMonths = regexp.MustCompile(`^P[^T]*\d[YM]`)

// ParseDuration parses an ISO 8601 duration such as 'PT0.5S' or 'P1DT12H' (eventing DeliverySpec). It supports components of
// fixed length: weeks, days of 24 hours, hours, minutes and seconds, with an optional fraction of seconds, to the nanosecond.
// It rejects years and months: they have no fixed length, and 'P1M' is more likely a mistaken minute than a month. The result
// is never negative. Errors are worded to follow a field name in a validation message.
func ParseDuration(s string) (time.Duration, error) {
	switch {
	case len(s) > maxDurationLength:
		return 0, errors.New("must be an ISO 8601 duration of at most 64 characters")
	case strings.HasPrefix(s, "-P"), strings.HasPrefix(s, "P-"), strings.HasPrefix(s, "PT-"):
		return 0, errors.New("must be greater than or equal to 0")
	case yearsOrMonths.MatchString(s):
		return 0, errors.New("must not have years or months, whose length varies: a minute is 'PT1M', a month 'P30D'")
	case !isoDuration.MatchString(s), strings.HasSuffix(s, "P"), strings.HasSuffix(s, "T"), !fractionIsLast(s):
		return 0, errors.New("must be an ISO 8601 duration, such as 'PT30S' or 'P1DT12H'")
	}
	parsed, err := duration.Parse(strings.ReplaceAll(s, ",", "."))
	if err != nil {
		return 0, errors.New("must be an ISO 8601 duration, such as 'PT30S' or 'P1DT12H'")
	}
	hours := parsed.Weeks*7*24 + parsed.Days*24 + parsed.Hours + parsed.Minutes/60 + parsed.Seconds/3600
	if hours > maxDurationHours {
		return 0, errors.New("must be at most 292 years")
	}
	return parsed.ToTimeDuration(), nil
}

// fractionIsLast reports whether at most the last component of a duration has a fraction.
func fractionIsLast(s string) bool {
	_, fraction, found := strings.Cut(strings.ReplaceAll(s, ",", "."), ".")
	return !found || len(strings.TrimLeft(fraction, "0123456789")) == 1
}

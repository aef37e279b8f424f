package v1

import (
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestParseDuration covers the ISO 8601 format of eventing DeliverySpec.
func TestParseDuration(t *testing.T) {
	const day = 24 * time.Hour
	good := map[string]time.Duration{
		"PT0S":           0,
		"P0D":            0,
		"PT30S":          30 * time.Second,
		"PT0.5S":         500 * time.Millisecond,
		"PT0,2S":         200 * time.Millisecond,
		"PT0.000000001S": time.Nanosecond,
		"PT1M":           time.Minute,
		"PT1.5H":         90 * time.Minute,
		"P1D":            day,
		"P0.5D":          12 * time.Hour,
		"P2W":            14 * day,
		"P1W1DT1H1M1S":   8*day + time.Hour + time.Minute + time.Second,
		"P1DT12H":        36 * time.Hour,
		"PT007S":         7 * time.Second,
		"PT90M":          90 * time.Minute,
		"P106751D":       106751 * day,
	}
	for in, want := range good {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("ParseDuration(%q) = %v, %v; want %v", in, got, err, want)
		}
	}

	const syntax = "must be an ISO 8601 duration, such as 'PT30S' or 'P1DT12H'"
	bad := map[string]string{
		"":                                   syntax,
		"P":                                  syntax,
		"PT":                                 syntax,
		"P1DT":                               syntax,
		"1S":                                 syntax,
		"30s":                                syntax,
		"PT30":                               syntax,
		"PTS":                                syntax,
		"PT.5S":                              syntax,
		"PT5.S":                              syntax,
		"PT0.5H1M":                           syntax,
		"PT0.5.5S":                           syntax,
		"P5T5S":                              syntax,
		"PP1D":                               syntax,
		"PT1ST1S":                            syntax,
		"PT1S1S":                             syntax,
		"PT1S1M":                             syntax,
		"P1H":                                syntax,
		"PT1D":                               syntax,
		"pt1s":                               syntax,
		" PT1S":                              syntax,
		"PT1S ":                              syntax,
		"PT1S\n":                             syntax,
		"+PT1S":                              syntax,
		"PT+1S":                              syntax,
		"PT١S":                               syntax,
		"PT1e3S":                             syntax,
		"P1D/P2D":                            syntax,
		"-PT1S":                              "must be greater than or equal to 0",
		"PT-1S":                              "must be greater than or equal to 0",
		"P-1D":                               "must be greater than or equal to 0",
		"P1Y":                                "must not have years or months",
		"P1M":                                "must not have years or months",
		"P1Y2M3DT4H":                         "must not have years or months",
		"P106752D":                           "must be at most 292 years",
		"PT9223372036854775808S":             "must be at most 292 years",
		"PT" + strings.Repeat("9", 61) + "H": "must be at most 292 years",
		"PT" + strings.Repeat("0", 62) + "S": "must be an ISO 8601 duration of at most 64 characters",
	}
	for in, want := range bad {
		if got, err := ParseDuration(in); err == nil || !strings.Contains(err.Error(), want) || got != 0 {
			t.Errorf("ParseDuration(%q) = %v, %v; want %q", in, got, err, want)
		}
	}
}

// FuzzParseDuration compares with exact arithmetic on the components.
func FuzzParseDuration(f *testing.F) {
	for _, seed := range []string{"PT30S", "P1W2DT3H4M5.678S", "PT0,5M", "P", "-PT1S", "P1Y2M", "P5T5S", "PT9223372036S", "P106751DT23H47M16.854775807S"} {
		f.Add(seed)
	}
	component := regexp.MustCompile(`([0-9]+(?:\.[0-9]+)?)([WDHMS])`)
	units := map[string]time.Duration{"W": 7 * 24 * time.Hour, "D": 24 * time.Hour, "H": time.Hour, "M": time.Minute, "S": time.Second}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseDuration(s)
		if err != nil {
			if got != 0 || !strings.HasPrefix(err.Error(), "must ") {
				t.Fatalf("ParseDuration(%q) = %v, %v", s, got, err)
			}
			return
		}
		if got < 0 {
			t.Fatalf("ParseDuration(%q) = %v, which is negative", s, got)
		}
		want := new(big.Rat)
		for _, match := range component.FindAllStringSubmatch(strings.ReplaceAll(s, ",", "."), -1) {
			value, _ := new(big.Rat).SetString(match[1])
			want.Add(want, value.Mul(value, new(big.Rat).SetInt64(int64(units[match[2]]))))
		}
		off := new(big.Rat).Sub(want, new(big.Rat).SetInt64(int64(got)))
		// Floating point keeps 15 digits and each component is rounded to the nanosecond.
		allowed := new(big.Rat).Add(new(big.Rat).Mul(want, big.NewRat(1, 1e15)), big.NewRat(3, 1))
		if off.Abs(off).Cmp(allowed) > 0 {
			t.Fatalf("ParseDuration(%q) = %d ns, want %s", s, got, want.FloatString(3))
		}
	})
}

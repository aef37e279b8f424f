package shorten

import "testing"

// TestText covers texts around the limit, and characters of several bytes across it.
func TestText(t *testing.T) {
	for _, test := range []struct {
		text string
		most int
		want string
	}{
		{"", 5, ""}, {"abcde", 5, "abcde"}, {"abcdef", 5, "ab..."}, {"aäöü", 6, "aä..."}, {"äöü", 5, "ä..."}, {"aäöü", 5, "a..."}, {"a\xffbcdef", 6, "ab..."},
	} {
		if got := Text(test.text, test.most); got != test.want {
			t.Errorf("%q in %d bytes is %q, want %q", test.text, test.most, got, test.want)
		}
	}
}

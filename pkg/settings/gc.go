package settings

import (
	"strings"
	"time"
)

// GCConfigMapName is the name of the ConfigMap with the settings of Revision garbage collection.
const GCConfigMapName = "config-gc"

// disabled is the value of a disabled bound.
const disabled = "disabled"

// parseGC sets the values of config-gc in s.
func parseGC(p *parser, s *Settings) error {
	g := &s.GC
	duration := orDisabled(period(func(d time.Duration) bool { return d >= 0 }))
	read(p, &g.RetainSinceCreateTime, duration, "a duration of at least 0s, or 'disabled'", "retain-since-create-time")
	read(p, &g.RetainSinceLastActiveTime, duration, "a duration of at least 0s, or 'disabled'", "retain-since-last-active-time")
	read(p, &g.MinNonActiveRevisions, whole(0), "a whole number of at least 0", "min-non-active-revisions")
	read(p, &g.MaxNonActiveRevisions, orDisabled(whole(0)), "a whole number of at least 0, or 'disabled'", "max-non-active-revisions")
	p.check(g.MaxNonActiveRevisions < 0 || g.MinNonActiveRevisions <= g.MaxNonActiveRevisions, "min-non-active-revisions",
		"be at most 'max-non-active-revisions' (%d), not %d", g.MaxNonActiveRevisions, g.MinNonActiveRevisions)
	return p.done()
}

// orDisabled parses "disabled" as -1, and other values with parse.
func orDisabled[T time.Duration | int](parse func(string) (T, bool)) func(string) (T, bool) {
	return func(value string) (T, bool) {
		if strings.EqualFold(value, disabled) {
			return -1, true
		}
		return parse(value)
	}
}

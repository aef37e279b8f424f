//go:build !linux

package timerslack

// Extend does nothing, because only Linux delays timers.
func Extend() error { return nil }

// Reset does nothing.
func Reset() error { return nil }

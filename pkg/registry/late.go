package registry

import "sync/atomic"

// Late is a dependency of a subresource that is set after the API is served, or never. The zero value has none. It is safe for concurrent use.
type Late[T any] struct{ value atomic.Pointer[T] }

// Set sets the dependency.
func (l *Late[T]) Set(value T) { l.value.Store(&value) }

// Load returns the dependency, or nil before Set.
func (l *Late[T]) Load() *T { return l.value.Load() }

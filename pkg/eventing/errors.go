package eventing

import (
	"errors"
	"fmt"
)

// Reasons why events are not accepted. Errors of Accept match one of them; their text is for the sender.
var (
	// ErrNotFound is returned for a stream that does not exist.
	ErrNotFound = errors.New("not found")
	// ErrLoop is returned for an event that has passed through too many Brokers.
	ErrLoop = errors.New("loop")
	// ErrTooLarge is returned for an event or a batch that is never accepted because of its size.
	ErrTooLarge = errors.New("too large")
	// ErrFull is returned while the event log, the share of the namespace in it, or its memory is used up.
	ErrFull = errors.New("full")
	// ErrUnavailable is returned while the event log cannot store events.
	ErrUnavailable = errors.New("unavailable")
	// ErrNotReady is returned during the handover of a stream between replicas.
	ErrNotReady = errors.New("not ready")
	// ErrNotOwner is returned for a stream that another replica owns.
	ErrNotOwner = errors.New("another replica owns the stream")
)

// rejection is an error with a text for the sender.
type rejection struct {
	reason  error
	message string
}

// Reject returns an error that matches reason and has its own text.
func Reject(reason error, format string, args ...any) error {
	return &rejection{reason, fmt.Sprintf(format, args...)}
}

// Error implements error.
func (r *rejection) Error() string { return r.message }

// Unwrap returns the reason.
func (r *rejection) Unwrap() error { return r.reason }

// OtherOwner is returned instead of accepting events in a partition that another replica owns. It matches ErrNotOwner.
type OtherOwner struct{ Partition Key }

// Error implements error.
func (o OtherOwner) Error() string { return "another replica owns " + o.Partition.String() }

// Unwrap returns ErrNotOwner.
func (OtherOwner) Unwrap() error { return ErrNotOwner }

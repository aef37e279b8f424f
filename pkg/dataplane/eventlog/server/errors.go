package server

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

var (
	// ErrFull is returned while a limit of the log or its disk is reached.
	ErrFull = errors.New("the event log is full")
	// ErrTooLarge is returned for a record that is larger than the server's maximum message.
	ErrTooLarge = errors.New("the record is too large for the event log")
	// ErrClosed is returned after Stop.
	ErrClosed = errors.New("the event log is closed")
	// ErrUnavailable is returned while the server cannot be reached or cannot write.
	ErrUnavailable = errors.New("the event log is unavailable")
	// ErrEnded is returned for a request whose session ended before the response.
	ErrEnded = errors.New("the server was stopped")
)

// Classify makes an error of NATS wrap ErrFull, ErrTooLarge, ErrClosed or ErrUnavailable. Unavailability of the embedded server triggers a check.
func (s *Server) Classify(err error) error {
	var api *jetstream.APIError
	switch {
	case err == nil, errors.Is(err, ErrClosed), errors.Is(err, ErrFull), errors.Is(err, ErrUnavailable):
		return err
	case errors.Is(err, nats.ErrMaxPayload):
		return fmt.Errorf("%w: %w", ErrTooLarge, err)
	case errors.As(err, &api):
		switch server.ErrorIdentifier(api.ErrorCode) {
		case server.JSStreamMessageExceedsMaximumErr:
			return fmt.Errorf("%w: %w", ErrTooLarge, err)
		case server.JSAccountResourcesExceededErr, server.JSInsufficientResourcesErr,
			server.JSMemoryResourcesExceededErr, server.JSStorageResourcesExceededErr:
			return fmt.Errorf("%w: %w", ErrFull, err)
		case server.JSStreamStoreFailedF:
			// The code stands for any error of the store, which is sent as text.
			if api.Description == server.ErrMaxBytes.Error() || api.Description == server.ErrMaxMsgs.Error() {
				return fmt.Errorf("%w: %w", ErrFull, err)
			}
		}
	}
	s.Suspect()
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// Explain adds the failed action, other than an append, to an error. An error that a limit or the server caused wraps the
// errors of this package.
func (s *Server) Explain(action string, err error) error {
	var api *jetstream.APIError
	if s.Clustered() && (errors.Is(err, context.DeadlineExceeded) || errors.As(err, &api) && lacksServers(api)) {
		return fmt.Errorf("event log: %s: %w: %w", action, ErrUnavailable, err)
	}
	if errors.As(err, &api) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return fmt.Errorf("event log: %s: %w", action, err)
	}
	return fmt.Errorf("event log: %s: %w", action, s.Classify(err))
}

// lacksServers reports whether a cluster failed because servers are missing.
func lacksServers(err *jetstream.APIError) bool {
	switch server.ErrorIdentifier(err.ErrorCode) {
	case server.JSClusterNoPeersErrF, server.JSClusterNotAvailErr, server.JSClusterNotLeaderErr,
		server.JSClusterServerNotMemberErr:
		return true
	}
	return false
}

// IsNotFound reports whether JetStream found no stream or message.
func IsNotFound(err *jetstream.APIError) bool {
	switch server.ErrorIdentifier(err.ErrorCode) {
	case server.JSStreamNotFoundErr, server.JSNoMessageFoundErr, server.JSSequenceNotFoundErrF:
		return true
	case server.JSStreamMsgDeleteFailedF:
		// The code stands for any error of the store, which is sent as text.
		return err.Description == server.ErrStoreMsgNotFound.Error() || err.Description == server.ErrStoreEOF.Error()
	}
	return false
}

func isAPI(err error, code server.ErrorIdentifier) bool {
	var api *jetstream.APIError
	return errors.As(err, &api) && server.ErrorIdentifier(api.ErrorCode) == code
}

package server

import (
	"fmt"
	"maps"
	"time"

	"github.com/nats-io/nats-server/v2/server"
)

// failure returns the reason why an embedded server must be restarted, or "". Its streams are checked only on request,
// because that takes longer the more streams exist.
func (s *Session) failure(streams bool) string {
	if s.SyncFailed() {
		return "sync failed"
	}
	if !s.Embedded.JetStreamEnabled() {
		return "JetStream is disabled"
	}
	if s.Conn.IsClosed() {
		return "connection closed"
	}
	if !streams {
		return ""
	}
	// Streams that are created or deleted are reported for a moment, so only permanent faults count.
	found := s.faults()
	for range 3 {
		if len(found) == 0 {
			return ""
		}
		time.Sleep(100 * time.Millisecond)
		still := s.faults()
		maps.DeleteFunc(found, func(fault string, _ bool) bool { return !still[fault] })
	}
	for fault := range found {
		return fault
	}
	return ""
}

// faults returns the faults of the server's streams, except faults that a restart did not repair.
func (s *Session) faults() map[string]bool {
	if !s.Local {
		return s.brokenGroups()
	}
	found := map[string]bool{}
	for _, e := range s.Embedded.Healthz(&server.HealthzOptions{Details: true}).Errors {
		if e.Type == server.HealthzErrorStream && !s.unrepaired[e.Error] {
			found[e.Error] = true
		}
	}
	return found
}

// Unrepaired returns the faults of streams that the embedded server had when it started.
func (s *Session) Unrepaired() map[string]bool { return s.unrepaired }

// brokenGroups returns the replication groups that the server of a cluster can no longer write. The servers repair other
// faults of their streams, such as lag, themselves.
func (s *Session) brokenGroups() map[string]bool {
	found := map[string]bool{}
	status := s.Embedded.Raftz(&server.RaftzOptions{AccountFilter: server.DEFAULT_SYSTEM_ACCOUNT})
	if status == nil {
		return found
	}
	for _, groups := range *status {
		for name, group := range groups {
			if group.WALError != nil {
				found["group "+name+": "+group.WALError.Error()] = true
			}
		}
	}
	return found
}

// rewriteUnsynced rewrites the files that could not be synced. No server runs meanwhile.
func (s *Session) rewriteUnsynced() error {
	rewrite := s.rewrite.Load()
	if rewrite == nil {
		return nil
	}
	if err := (*rewrite)(); err != nil {
		return fmt.Errorf("%w: rewrite unsynced files: %w", ErrUnavailable, err)
	}
	return nil
}

package server

import (
	"context"
	"errors"
	"sync"

	"github.com/go-logr/logr"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"
)

// EnsureStream creates a stream, or updates its configuration. With too few servers for a new stream's replicas, fewer
// servers hold it, at least two, and it is under-replicated: pass that to Streams.Track.
func (s *Session) EnsureStream(ctx context.Context, config jetstream.StreamConfig) (underReplicated bool, err error) {
	if s.clustered() {
		// Without a leader no server responds.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, APITimeout)
		defer cancel()
	}
	_, err = s.JetStream.CreateOrUpdateStream(ctx, config)
	if !s.clustered() || config.Replicas < 3 || !isAPI(err, server.JSClusterNoPeersErrF) {
		return false, err
	}
	config.Replicas = 2
	_, fewerErr := s.JetStream.CreateStream(ctx, config)
	switch {
	case fewerErr == nil, errors.Is(fewerErr, jetstream.ErrStreamNameAlreadyInUse):
		// An existing one keeps its servers.
		return true, nil
	default:
		return false, errors.Join(err, fewerErr)
	}
}

// trackedStream is a stream that this process uses.
type trackedStream struct {
	config          jetstream.StreamConfig
	underReplicated bool
}

// Streams are the streams that this process uses.
type Streams struct {
	mu      sync.Mutex
	tracked map[string]trackedStream // guarded by mu
}

// Track maintains a stream: after a restart of the embedded server it is created again if it was in memory, and an
// under-replicated stream gets the replicas of config when enough servers run.
func (s *Streams) Track(config jetstream.StreamConfig, underReplicated bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tracked[config.Name] = trackedStream{config: config, underReplicated: underReplicated}
}

// Untrack ends Track.
func (s *Streams) Untrack(stream string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tracked, stream)
}

// matching returns the configurations of tracked streams that match.
func (s *Streams) matching(match func(trackedStream) bool) []jetstream.StreamConfig {
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []jetstream.StreamConfig
	for _, stream := range s.tracked {
		if match(stream) {
			found = append(found, stream.config)
		}
	}
	return found
}

// replicate adds the missing replicas of under-replicated streams.
func (s *Streams) replicate(ctx context.Context, session *Session, logger logr.Logger) {
	for _, config := range s.matching(func(t trackedStream) bool { return t.underReplicated }) {
		update, cancel := context.WithTimeout(ctx, APITimeout)
		_, err := session.JetStream.UpdateStream(update, config)
		cancel()
		if err != nil {
			// The others lack the same servers.
			return
		}
		s.mu.Lock()
		if stream, found := s.tracked[config.Name]; found {
			stream.underReplicated = false
			s.tracked[config.Name] = stream
		}
		s.mu.Unlock()
		logger.Info("Stream is replicated to all servers", "stream", config.Name)
	}
}

package server

import (
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog/layout"
)

// Usage returns the number of bytes that the embedded server's streams hold; 0 while it is down.
func (s *Server) Usage() (memory, disk int64) {
	session := s.current.Load()
	if session == nil {
		return 0, 0
	}
	usage := session.Embedded.GlobalAccount().JetStreamUsage()
	// The usage of a cluster is the sum over its servers.
	copies := int64(1)
	if !session.Local {
		copies = int64(s.options.Replicas)
	}
	return int64(usage.Memory) / copies, int64(usage.Store) / copies
}

// TenantUsage returns the number of bytes that the streams of each tenant hold in the embedded server, and whether it is known.
func (s *Server) TenantUsage(storage jetstream.StorageType) (map[string]int64, bool) {
	session := s.current.Load()
	if session == nil {
		return nil, false
	}
	account, err := session.Embedded.JszAccount(&server.JSzOptions{
		Account: session.Embedded.GlobalAccount().GetName(), Streams: true, Config: true,
	})
	if err != nil {
		return nil, false
	}
	held := map[string]int64{}
	for i := range account.Streams {
		stream := &account.Streams[i]
		inMemory := stream.Config.Storage == server.MemoryStorage
		if tenant := stream.Config.Metadata[layout.TenantKey]; tenant != "" && inMemory == (storage == jetstream.MemoryStorage) {
			held[tenant] += int64(stream.State.Bytes)
		}
	}
	return held, true
}

package streams

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"

	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/trace"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/membership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/ownership"
	"github.com/knative-apiserver/knative-apiserver/pkg/replica/peer"
)

// ConsumersElement begins the paths by which the owner of the first partition of a stream asks the owners of the others whether they have set a
// consumer. Manager.HasConsumer answers them.
const ConsumersElement = "consumers"

// PartitionsElement begins the paths by which the owner of another partition asks the owner of the first one whether it knows that partition.
// Manager.HasPartition answers them.
const PartitionsElement = "partitions"

const (
	// confirmInterval is the time between two questions about a consumer, confirmTimeout the time until all owners must have set it.
	confirmInterval, confirmTimeout = 25 * time.Millisecond, 2 * time.Second
)

// confirm waits until the owners of all partitions of a stream have set a consumer: its object reports then that the events that are accepted
// from now on reach it. Only the owner of the first partition asks, because it writes that status.
func (m *Manager) confirm(ctx context.Context, config *eventing.Consumer) error {
	owners := m.options.Owners.Current()
	if m.options.Peers == nil || !owners.Owns(config.Stream) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	asked := sets.New[string]()
	for n := 1; n < m.Partitions(config.Stream); n++ {
		owner, self := owners.Owner(config.Stream.Part(n))
		if self || asked.Has(owner.Name) {
			continue
		}
		asked.Insert(owner.Name)
		if err := m.ask(ctx, owner, confirmPath(config)); err != nil {
			return fmt.Errorf("replica %s has not set %s yet: %w", owner.Name, config.Key, err)
		}
	}
	return nil
}

// known waits until the owner of the first partition of a stream knows another partition. A partition that it does not know accepts no events:
// the consumers of the stream would not be confirmed.
func (m *Manager) known(ctx context.Context, partition eventing.Key, owners ownership.Owners[eventing.Key]) error {
	first, self := owners.Owner(partition.Whole())
	if partition.Partition == 0 || m.options.Peers == nil || self {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, confirmTimeout)
	defer cancel()
	path := strings.Join([]string{"", PartitionsElement, string(partition.Kind), partition.Namespace, partition.Name, strconv.Itoa(partition.Partition)}, "/")
	if err := m.ask(ctx, first, path); err != nil {
		return fmt.Errorf("replica %s does not know %s yet: %w", first.Name, partition, err)
	}
	return nil
}

// ask asks a replica until it answers yes.
func (m *Manager) ask(ctx context.Context, owner membership.Member, path string) error {
	call := peer.Call{Method: http.MethodGet, Path: path}
	return call.Retry(ctx, m.options.Peers, owner, confirmInterval, func(error) bool { return false })
}

// HasPartition returns the handler of questions about partitions, below PartitionsElement: /<kind>/<namespace>/<name>/<partition>. It answers
// 204 if this replica knows the partition, and 409 otherwise.
func (m *Manager) HasPartition() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		partition, ok := parseKey(r.URL.Path)
		if !ok {
			http.NotFound(w, r)
			return
		}
		answer(w, m.Partitions(partition.Whole()) > partition.Partition)
	})
}

func answer(w http.ResponseWriter, yes bool) {
	if !yes {
		http.Error(w, "not yet", http.StatusConflict)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}

// confirmPath returns the path of a question about a consumer.
func confirmPath(c *eventing.Consumer) string {
	return strings.Join([]string{"", ConsumersElement, string(c.Key.Kind), c.Key.Namespace, c.Key.Name, string(c.UID), strconv.FormatUint(trace.Fingerprint(c), 16)}, "/")
}

// HasConsumer returns the handler of questions about consumers, below ConsumersElement: /<kind>/<namespace>/<name>/<UID>/<fingerprint of the
// filters>. It answers 204 if the consumer is set with these filters for all partitions that this replica owns, and 409 otherwise.
func (m *Manager) HasConsumer() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if len(parts) != 5 {
			http.NotFound(w, r)
			return
		}
		key := eventing.Key{Kind: eventing.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
		answer(w, m.has(key, types.UID(parts[3]), parts[4]))
	})
}

// has reports whether a consumer has filters with a fingerprint here, at all partitions that this replica owns too.
func (m *Manager) has(key eventing.Key, uid types.UID, fingerprint string) bool {
	stream, found := m.catalog.streamOf(key)
	if !found {
		return false
	}
	owners := m.options.Owners.Current()
	for n := range max(1, m.Partitions(stream)) {
		partition := stream.Part(n)
		st := m.catalog.find(partition)
		// The consumers of the first partition are copied to new ones.
		if owned := owners.Owns(partition); (owned || n == 0) && (st == nil || !st.has(key, uid, fingerprint, owned)) {
			return false
		}
	}
	return true
}

// has reports whether a consumer has filters with a fingerprint, at a partition that is served if it is owned.
func (st *stream) has(key eventing.Key, uid types.UID, fingerprint string, owned bool) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	config, found := st.consumers[key]
	return found && (st.served || !owned) && config.UID == uid && strconv.FormatUint(trace.Fingerprint(&config), 16) == fingerprint
}

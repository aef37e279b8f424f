package streams

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

const (
	// HandoverElement begins the paths by which a replica tells another that it has left a stream to it. Handover answers
	// them.
	HandoverElement = "handover"
	// handovers is how often that is tried, handoverTimeout the time for each, which is as much between them.
	handovers, handoverTimeout = 5, 2 * time.Second
)

// handOver tells the replica that a stream belongs to that it was left to it: it may have looked at the log before the
// last of its events were written. What is not heard is found by lookAgain, but for replicas that were cut off for long.
func (s *Shards) handOver(key eventing.Key) {
	if s.options.Peers == nil {
		return
	}
	s.telling.Go(func() {
		for range handovers {
			err := s.tell(key)
			if err == nil {
				return
			}
			klog.FromContext(s.ctx).V(2).Info("Telling another replica of its stream failed", "stream", key.String(), "reason", err.Error())
			select {
			case <-s.options.Clock.After(handoverTimeout):
			case <-s.ctx.Done():
				return
			}
		}
	})
}

func (s *Shards) tell(key eventing.Key) error {
	current := s.options.Members.Current()
	owner := current.Owner(key.String())
	if owner.Name == current.Self() {
		return nil
	}
	ctx, cancel := context.WithTimeout(s.ctx, handoverTimeout)
	defer cancel()
	url := "https://" + owner.Address + "/" + HandoverElement + "/" + string(key.Kind) + "/" + key.Namespace + "/" + key.Name
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, http.NoBody)
	if err != nil {
		return err
	}
	response, err := s.options.Peers.RoundTrip(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusNoContent {
		return fmt.Errorf("replica %s answered %s", owner.Name, response.Status)
	}
	return nil
}

// Handover answers other replicas that leave a stream, /<kind>/<namespace>/<name>, to this one.
func (s *Shards) Handover() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		parts := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if len(parts) != 3 {
			http.NotFound(w, r)
			return
		}
		key := eventing.Key{Kind: eventing.Kind(parts[0]), Namespace: parts[1], Name: parts[2]}
		if err := s.options.Broker.Refresh(r.Context(), key); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
}

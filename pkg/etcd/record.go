package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// recordName is that of the ConfigMap with the record, recordKey that of its only entry, in JSON.
	recordName = "knative-apiserver-etcd"
	recordKey  = "record.json"
	// recordAttempts bounds how often a change is made again because another one came first.
	recordAttempts = 20
)

// State is what the members of a cluster know of each other before they are in it.
type State struct {
	// Cluster is the cluster's ID in hexadecimal digits, empty until it runs.
	Cluster string `json:"cluster,omitempty"`
	// Bootstrap is the one that makes the cluster, with itself as its only member. Its name is empty while there is none.
	Bootstrap Peer `json:"bootstrap"`
	// Joined are those that hold the cluster's data, the one that made it among them.
	Joined []Peer `json:"joined,omitempty"`
}

// Peer is a member as the others see it.
type Peer struct {
	Name string `json:"name"`
	// PeerURL is for members, ClientURL for clients that have a member's certificate.
	PeerURL   string `json:"peerURL"`
	ClientURL string `json:"clientURL"`
}

// Record keeps a State where all members find it.
type Record interface {
	// Update has change alter the state, which is zero if there is none yet, and returns what there is then. It is stored
	// if it differs and nobody else has stored one meanwhile, else change is called again with that one.
	Update(ctx context.Context, change func(*State)) (State, error)
}

// others are those besides one of a name that hold the cluster's data.
func (s State) others(name string) []Peer {
	return slices.DeleteFunc(slices.Clone(s.Joined), func(p Peer) bool { return p.Name == name })
}

// join adds a member, or replaces the one of its name.
func (s *State) join(p Peer) {
	i := slices.IndexFunc(s.Joined, func(other Peer) bool { return other.Name == p.Name })
	if i < 0 {
		s.Joined = append(s.Joined, p)
		return
	}
	s.Joined[i] = p
}

func (s State) equal(o State) bool {
	return s.Cluster == o.Cluster && s.Bootstrap == o.Bootstrap && slices.Equal(s.Joined, o.Joined)
}

// configMap is a Record in a ConfigMap.
type configMap struct {
	client    kubernetes.Interface
	namespace string
}

// NewConfigMapRecord returns the record in the ConfigMap 'knative-apiserver-etcd' of a namespace, for which the client
// must be allowed to get, create and update it.
func NewConfigMapRecord(client kubernetes.Interface, namespace string) Record {
	return &configMap{client: client, namespace: namespace}
}

// Update implements Record.
func (r *configMap) Update(ctx context.Context, change func(*State)) (State, error) {
	var err error
	for range recordAttempts {
		var state State
		if state, err = r.update(ctx, change); err == nil {
			return state, nil
		}
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
			break
		}
	}
	return State{}, fmt.Errorf("recording the members of etcd in ConfigMap '%s/%s': %w", r.namespace, recordName, err)
}

func (r *configMap) update(ctx context.Context, change func(*State)) (State, error) {
	maps := r.client.CoreV1().ConfigMaps(r.namespace)
	var before State
	stored, err := maps.Get(ctx, recordName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		stored = &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: recordName, Namespace: r.namespace}}
	case err != nil:
		return State{}, err
	case stored.Data[recordKey] != "":
		if err := json.Unmarshal([]byte(stored.Data[recordKey]), &before); err != nil {
			return State{}, fmt.Errorf("reading '%s': %w", recordKey, err)
		}
	}
	after := before
	after.Joined = slices.Clone(before.Joined)
	change(&after)
	if after.equal(before) {
		return before, nil
	}
	content, err := json.Marshal(after)
	if err != nil {
		return State{}, err
	}
	stored.Data = map[string]string{recordKey: string(content)}
	if missing {
		_, err = maps.Create(ctx, stored, metav1.CreateOptions{})
	} else {
		_, err = maps.Update(ctx, stored, metav1.UpdateOptions{})
	}
	return after, err
}

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
	// recordName is the name of the ConfigMap with the record, recordKey the name of its only entry, in JSON.
	recordName = "knative-apiserver-etcd"
	recordKey  = "record.json"
	// recordAttempts bounds the retries of a change after conflicts.
	recordAttempts = 20
)

// State is the information that members of a cluster share before they join it.
type State struct {
	// Cluster is the cluster ID in hexadecimal digits, empty until the cluster runs.
	Cluster string `json:"cluster,omitempty"`
	// Bootstrap is the member that creates the cluster as its only member. Its name is empty until a member registers.
	Bootstrap Peer `json:"bootstrap"`
	// Joined are the members that have the cluster's data, including the bootstrap member.
	Joined []Peer `json:"joined,omitempty"`
}

// Peer is a member from the point of view of the others.
type Peer struct {
	Name string `json:"name"`
	// PeerURL is for members, ClientURL for clients with a member's certificate.
	PeerURL   string `json:"peerURL"`
	ClientURL string `json:"clientURL"`
}

// Record stores a State that all members can access.
type Record interface {
	// Update applies change to the state, which is zero if none is stored, and returns the result. The result is stored if
	// it differs. After a conflict, change is called again with the newer state.
	Update(ctx context.Context, change func(*State)) (State, error)
}

// others returns the members with the cluster's data except the named one.
func (s State) others(name string) []Peer {
	return slices.DeleteFunc(slices.Clone(s.Joined), func(p Peer) bool { return p.Name == name })
}

// join adds a member, or replaces the member of the same name.
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

// NewConfigMapRecord returns the record in the ConfigMap 'knative-apiserver-etcd' of a namespace. The client must be allowed
// to get, create and update it.
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
	return State{}, fmt.Errorf("record etcd members in ConfigMap '%s/%s': %w", r.namespace, recordName, err)
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
			return State{}, fmt.Errorf("parse '%s': %w", recordKey, err)
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

package etcd

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var one, two = Peer{Name: "one", PeerURL: "https://one:2380", ClientURL: "https://one:2379"}, Peer{Name: "two", PeerURL: "https://two:2380", ClientURL: "https://two:2379"}

// A member's record is visible to the next member; an unchanged record is not written.
func TestConfigMapRecord(t *testing.T) {
	client := fake.NewClientset()
	record := NewConfigMapRecord(client, "system")
	if _, err := record.Update(t.Context(), func(s *State) { s.Bootstrap = one }); err != nil {
		t.Fatal(err)
	}
	if _, err := record.Update(t.Context(), func(s *State) { s.Cluster = "c"; s.join(two); s.join(one); s.join(two) }); err != nil {
		t.Fatal(err)
	}
	writes := len(client.Actions())
	got, err := NewConfigMapRecord(client, "system").Update(t.Context(), func(*State) {})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(State{Cluster: "c", Bootstrap: one, Joined: []Peer{two, one}}, got); diff != "" {
		t.Errorf("state (-want +got): %s", diff)
	}
	for _, action := range client.Actions()[writes:] {
		if action.GetVerb() != "get" {
			t.Errorf("an unchanged state leads to '%s'", action.GetVerb())
		}
	}
	if diff := cmp.Diff([]Peer{one}, got.others("two")); diff != "" {
		t.Errorf("others (-want +got): %s", diff)
	}
}

// After a conflict, a change applies to the newer record.
func TestConfigMapRecordConflict(t *testing.T) {
	resource := corev1.Resource("configmaps")
	for name, conflict := range map[string]error{
		"create": apierrors.NewAlreadyExists(resource, recordName),
		"update": apierrors.NewConflict(resource, recordName, errors.New("changed")),
	} {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			other := &corev1.ConfigMap{
				ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: recordName},
				Data:       map[string]string{recordKey: `{"bootstrap":{"name":"two"}}`},
			}
			if name == "update" {
				if err := client.Tracker().Add(&corev1.ConfigMap{ObjectMeta: other.ObjectMeta}); err != nil {
					t.Fatal(err)
				}
			}
			first := true
			client.PrependReactor(name, "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
				if !first {
					return false, nil, nil
				}
				first = false
				if name == "create" {
					return true, nil, errors.Join(client.Tracker().Add(other), conflict)
				}
				return true, nil, errors.Join(client.Tracker().Update(corev1.SchemeGroupVersion.WithResource("configmaps"), other, "system"), conflict)
			})
			got, err := NewConfigMapRecord(client, "system").Update(t.Context(), func(s *State) {
				if s.Bootstrap.Name == "" {
					s.Bootstrap = one
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got.Bootstrap.Name != "two" {
				t.Errorf("'%s' creates the cluster, want 'two', the first to register", got.Bootstrap.Name)
			}
		})
	}
}

// A record that cannot be parsed is not overwritten.
func TestConfigMapRecordUnreadable(t *testing.T) {
	client := fake.NewClientset(&corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "system", Name: recordName}, Data: map[string]string{recordKey: "{"},
	})
	if _, err := NewConfigMapRecord(client, "system").Update(t.Context(), func(s *State) { s.Bootstrap = one }); err == nil {
		t.Error("no error")
	}
	for _, action := range client.Actions() {
		if action.GetVerb() != "get" {
			t.Errorf("the record was changed by '%s'", action.GetVerb())
		}
	}
}

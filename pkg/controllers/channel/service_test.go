package channel

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/hostservice"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/internal/controllertest"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/streams"
)

// fakeServices records the names of the Services of Channels.
type fakeServices struct {
	names []string
	err   error
}

func (f *fakeServices) Apply(_ context.Context, _ metav1.Object, names []string) error {
	f.names = names
	return f.err
}

func (f *fakeServices) Forget(types.NamespacedName) { f.names = nil }

func (*fakeServices) Track(*reconciler.Controller) error { return nil }

// TestService checks that a Channel gets its core Service before its address, and that an error is reported if that fails.
func TestService(t *testing.T) {
	notOwned := &hostservice.NotOwned{Service: key, Kind: "Channel"}
	quota := apierrors.NewForbidden(corev1.Resource("services"), "orders", errors.New("exceeded quota"))
	down := errors.New("connection refused")
	for _, tt := range []struct {
		name    string
		fault   error
		want    string
		retried bool
	}{
		{"there", nil, "True", false},
		{"owned by another object", notOwned, "False NotOwned " + notOwned.Error(), false},
		{"quota", quota, "False ServiceFailed The Channel's address does not resolve: " + quota.Error(), true},
		{"host down", down, "Unknown ServiceFailed The Channel's address does not resolve yet: connection refused", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream))
			services := &fakeServices{err: tt.fault}
			f.Services = services
			if err := controllertest.Reconcile(t.Context(), f, key); !errors.Is(err, tt.fault) && tt.retried || err != nil && !tt.retried {
				t.Errorf("error %v, want one to retry: %v", err, tt.retried)
			}
			if diff := cmp.Diff([]string{"orders-kn-channel"}, services.names); diff != "" {
				t.Errorf("names (-want +got):\n%s", diff)
			}
			if got := f.condition(messagingv1.ChannelConditionAddressable); got != tt.want {
				t.Errorf("Addressable is %q, want %q", got, tt.want)
			}
			if got := f.channel().Status.Address.GetURL() != ""; got != (tt.fault == nil) {
				t.Errorf("has an address: %v", got)
			}
			if _, kept := f.streams.streams[streams.ChannelKey(key)]; !kept {
				t.Error("no stream")
			}
		})
	}
}

// TestFollowing checks that a replica that does not write only sets the stream of a Channel.
func TestFollowing(t *testing.T) {
	f := newFixture(t, channelOf(messagingv1.ChannelKindJetStream))
	services := &fakeServices{}
	f.Services = services
	f.Fixture.Client.ClearActions()
	if _, err := f.Reconcile(t.Context(), reconciler.NewRequest(key, false)); err != nil {
		t.Fatal(err)
	}
	if _, kept := f.streams.streams[streams.ChannelKey(key)]; !kept {
		t.Error("no stream")
	}
	if writes := f.Writes(); len(writes) > 0 || len(services.names) > 0 {
		t.Errorf("writes are %v, core Services %v", writes, services.names)
	}
}

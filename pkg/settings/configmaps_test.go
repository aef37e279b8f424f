package settings

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

const system = "knative-system"

// recorded is a Reporter that records reports.
type recorded []string

func (r *recorded) Fault(name string, _ types.UID, err error) {
	*r = append(*r, fmt.Sprintf("%s: %v", name, err))
}

func (r *recorded) Unused(name string, _ types.UID, keys []UnusedKey) {
	*r = append(*r, name+": unused "+JoinUnused(keys))
}

func gcConfig(namespace string, data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: GCConfigMapName}, Data: data}
}

// TestWatchConfigMaps follows the ConfigMaps of the host cluster: a valid value takes effect at once, an invalid one keeps the
// last valid value and is reported once, and a missing ConfigMap means the defaults.
func TestWatchConfigMaps(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		client := fake.NewClientset(
			gcConfig(system, map[string]string{"retain-since-create-time": "1h"}),
			gcConfig("elsewhere", map[string]string{"retain-since-create-time": "2h"}),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "other"}, Data: map[string]string{"key": "value"}},
		)
		store := NewStore(Default("example.com"))
		var reports recorded
		if err := store.WatchConfigMaps(ctx, client, system, &reports); err != nil {
			t.Fatal(err)
		}
		configMaps := client.CoreV1().ConfigMaps(system)
		update := func(data map[string]string) {
			t.Helper()
			if _, err := configMaps.Update(ctx, gcConfig(system, data), metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		expect := func(what string, retain time.Duration, wantReports ...string) {
			t.Helper()
			synctest.Wait()
			if got := store.Get().GC.RetainSinceCreateTime; got != retain {
				t.Errorf("%s: %v is in effect, want %v", what, got, retain)
			}
			if diff := cmp.Diff(recorded(wantReports), reports); diff != "" {
				t.Errorf("%s: reports (-want +got):\n%s", what, diff)
			}
			reports = nil
		}
		expect("at first", time.Hour)
		update(map[string]string{"retain-since-create-time": "3h"})
		expect("changed", 3*time.Hour)
		const fault = `config-gc: key 'retain-since-create-time' of config-gc must be a duration of at least 0s, or 'disabled', not "x"`
		update(map[string]string{"retain-since-create-time": "x"})
		expect("bad", 3*time.Hour, fault)
		update(map[string]string{"retain-since-create-time": "x", "_example": "y"})
		expect("still bad", 3*time.Hour)
		update(map[string]string{"retain-since-create-time": "4h"})
		expect("good again", 4*time.Hour, "config-gc: <nil>")
		update(nil)
		expect("emptied", 48*time.Hour)
		update(map[string]string{"retain-since-create-time": "x"})
		expect("bad once more", 48*time.Hour, fault)
		update(map[string]string{"retain-since": "4h", "retain-since-create-time": "x"})
		const unused = "config-gc: unused 'retain-since' (it is misspelt or not a setting of this server)"
		expect("a misspelt key beside it", 48*time.Hour, unused)
		update(map[string]string{"retain-since": "5h", "retain-since-create-time": "5h"})
		expect("misspelt still", 5*time.Hour, "config-gc: <nil>")
		update(map[string]string{"retain-since": "5h", "retain": "5h", "retain-since-create-time": "x"})
		expect("a second misspelt key", 5*time.Hour, fault,
			"config-gc: unused 'retain' (it is misspelt or not a setting of this server), 'retain-since' (it is misspelt or not a setting of this server)")
		if err := configMaps.Delete(ctx, GCConfigMapName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("gone", 48*time.Hour, "config-gc: <nil>", "config-gc: unused ")
		logging := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: system, Name: "config-logging"}, Data: map[string]string{"loglevel.webhook": "debug"}}
		if _, err := configMaps.Create(ctx, logging, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		expect("without any effect", 48*time.Hour, "config-logging: unused 'loglevel.webhook' (use --v, --vmodule and --logging-format)")
		stop()
		synctest.Wait()
	})
}

// TestWatchConfigMapsCancelled expects an error when the context is canceled before the ConfigMaps are read.
func TestWatchConfigMapsCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancelCause(t.Context())
		ended := errors.New("ended")
		stop(ended)
		err := NewStore(Default("example.com")).WatchConfigMaps(ctx, fake.NewClientset(), system, &recorded{})
		if !errors.Is(err, ended) {
			t.Errorf("got %v, want %v", err, ended)
		}
	})
}

// TestWatchConfigMapsForbidden expects an error for a missing role instead of a wait for it.
func TestWatchConfigMapsForbidden(t *testing.T) {
	client := fake.NewClientset()
	client.PrependReactor("list", "configmaps", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewForbidden(corev1.Resource("configmaps"), "", errors.New("no role"))
	})
	err := NewStore(Default("example.com")).WatchConfigMaps(t.Context(), client, system, &recorded{})
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `read settings in namespace "knative-system": configmaps is forbidden`) {
		t.Errorf("got %v, want Forbidden", err)
	}
}

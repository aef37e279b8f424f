package certs

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"
)

// apiService returns an APIService of this server with InjectLabel, modified by edit.
func apiService(name string, edit func(*unstructured.Unstructured)) *unstructured.Unstructured {
	a := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": name, "labels": map[string]any{InjectLabel: "true"}},
		"spec": map[string]any{
			"service": map[string]any{"name": "knative-apiserver", "namespace": namespace},
		},
	}}
	if edit != nil {
		edit(a)
	}
	return a
}

func newAPIServices(objects ...runtime.Object) *dynamicfake.FakeDynamicClient {
	return dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(),
		map[schema.GroupVersionResource]string{apiServices: "APIServiceList"}, objects...)
}

func getAPIService(t *testing.T, client *dynamicfake.FakeDynamicClient, name string) *unstructured.Unstructured {
	t.Helper()
	a, err := client.Resource(apiServices).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func caBundle(t *testing.T, client *dynamicfake.FakeDynamicClient, name string) []byte {
	t.Helper()
	encoded, _, _ := unstructured.NestedString(getAPIService(t, client, name).Object, "spec", "caBundle")
	bundle, err := base64.StdEncoding.DecodeString(encoded)
	if err != nil {
		t.Fatal(err)
	}
	return bundle
}

// runBundles runs the CABundles of m until the test ends.
func runBundles(t *testing.T, m *Manager, client *dynamicfake.FakeDynamicClient) {
	b := m.CABundles(client)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); b.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-ended })
	pass(time.Second)
}

func TestBundlesAreWrittenWhereTheyAreOurs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		foreign := base64.StdEncoding.EncodeToString([]byte("foreign"))
		set := func(value any, fields ...string) func(*unstructured.Unstructured) {
			return func(a *unstructured.Unstructured) {
				_ = unstructured.SetNestedField(a.Object, foreign, "spec", "caBundle")
				_ = unstructured.SetNestedField(a.Object, value, fields...)
			}
		}
		client := newAPIServices(
			apiService("empty", nil),
			apiService("wrong", set(foreign, "spec", "caBundle")),
			apiService("insecure", set(true, "spec", "insecureSkipTLSVerify")),
			apiService("unmarked", set(map[string]any{}, "metadata", "labels")),
			apiService("declined", set("false", "metadata", "labels", InjectLabel)),
			apiService("other-service", set("other", "spec", "service", "name")),
			apiService("other-namespace", set("other", "spec", "service", "namespace")),
		)
		m, _ := start(t, newHost(), nil)
		runBundles(t, m, client)
		synctest.Wait()
		for name, ours := range map[string]bool{"empty": true, "wrong": true, "insecure": true,
			"unmarked": false, "declined": false, "other-service": false, "other-namespace": false} {
			want := []byte("foreign")
			if ours {
				want = m.Bundle()
			}
			if got := caBundle(t, client, name); !bytes.Equal(got, want) {
				t.Errorf("%s has caBundle %q", name, got)
			}
		}
		if _, there, _ := unstructured.NestedBool(getAPIService(t, client, "insecure").Object, "spec", "insecureSkipTLSVerify"); there {
			t.Error("insecureSkipTLSVerify is still set, with which a caBundle is invalid")
		}
	})
}

func TestBundleIsRepairedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newAPIServices(apiService("ours", nil))
		m, _ := start(t, newHost(), nil)
		runBundles(t, m, client)
		for _, damage := range []any{nil, base64.StdEncoding.EncodeToString([]byte("other")), "no base64"} {
			synctest.Wait()
			a := getAPIService(t, client, "ours")
			_ = unstructured.SetNestedField(a.Object, damage, "spec", "caBundle")
			before := time.Now()
			if _, err := client.Resource(apiServices).Update(t.Context(), a, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			if got := caBundle(t, client, "ours"); !bytes.Equal(got, m.Bundle()) || !time.Now().Equal(before) {
				t.Errorf("after %v, caBundle is %q", damage, got)
			}
		}
	})
}

func TestNewLeaderWritesWhatTheOldOneLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newAPIServices(apiService("ours", nil))
		var leading atomic.Bool
		m, _ := start(t, newHost(), func(o *Options) { o.Leading = leading.Load })
		runBundles(t, m, client)
		pass(time.Minute)
		if got := caBundle(t, client, "ours"); len(got) > 0 {
			t.Errorf("a follower wrote caBundle %q", got)
		}
		leading.Store(true)
		pass(2 * retry)
		if got := caBundle(t, client, "ours"); !bytes.Equal(got, m.Bundle()) {
			t.Errorf("the new leader left caBundle %q", got)
		}
	})
}

// A new authority does not sign before the host cluster trusts it.
func TestRotationWaitsForBundles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, host := newAPIServices(apiService("ours", nil)), newHost()
		m, err := New(Options{Client: host, Namespace: namespace, ClusterDomain: "cluster.local", Settle: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		runBundles(t, m, client)
		ctx, cancel := context.WithCancel(t.Context())
		defer m.Wait()
		defer cancel()
		if err := m.Start(ctx); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		var refused atomic.Bool
		refused.Store(true)
		client.PrependReactor("patch", "apiservices", func(clienttesting.Action) (bool, runtime.Object, error) {
			if refused.Load() {
				return true, nil, errors.New("forbidden")
			}
			return false, nil, nil
		})
		old := signerOf(t, host)
		askForRotation(t, host, "now")
		pass(5 * time.Minute)
		if signerOf(t, host) != old {
			t.Error("an authority signs that the host cluster does not trust")
		}
		if err := callAPI(t, m, caBundle(t, client, "ours")); err != nil {
			t.Error(err)
		}
		refused.Store(false)
		pass(time.Minute)
		if signerOf(t, host) == old || trustedBy(t, host) != 1 {
			t.Error("the rotation did not continue")
		}
		if err := callAPI(t, m, caBundle(t, client, "ours")); err != nil {
			t.Error(err)
		}
	})
}

package operator

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/story"
)

// TestStory finds an event that was not delivered, on any replica, also after the one that accepted it was killed; delivers it again; and
// replays it.
func TestStory(t *testing.T) {
	setUp(t)
	image, err := node.AppImage()
	if err != nil {
		t.Fatal(err)
	}
	pod := serverPods(t)[0]
	story.Run(t, &story.Installation{
		Kubeconfig: node.Kubeconfig,
		Namespace:  newNamespace(t),
		Container: func(variable, value string) map[string]any {
			return map[string]any{"image": image, "env": []any{map[string]any{"name": variable, "value": value}}}
		},
		Sink: harness.NewSinkOn(t, node.Address),
		Ingress: &http.Client{Timeout: time.Minute, Transport: &http.Transport{
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort(pod.Status.PodIP, "8082"))
			},
		}},
		Kill: func(t *testing.T) {
			kill(t, &pod)
			awaitWhole(t)
		},
		Replicas: func(t *testing.T) (all [][]string) {
			for _, pod := range serverPods(t) {
				all = append(all, []string{"--server", "https://" + net.JoinHostPort(pod.Status.PodIP, "8443"), "--insecure-skip-tls-verify"})
			}
			return all
		},
	})
}

// serverPods returns the Pods of all replicas.
func serverPods(t *testing.T) (pods []corev1.Pod) {
	t.Helper()
	eventually(t, patience, "all replicas exist", func(ctx context.Context) (err error) {
		if pods, err = node.ServerPods(ctx); err == nil && len(pods) != harness.Replicas {
			err = fmt.Errorf("%d exist", len(pods))
		}
		return err
	})
	return pods
}

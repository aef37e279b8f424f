package plugin

import (
	"net/http"
	"testing"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
	"github.com/knative-apiserver/knative-apiserver/test/story"
)

// TestStory finds an event that was not delivered, delivers it again, and replays it, on a standalone server.
func TestStory(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	server := harness.RunStandalone(t, dir)
	program := harness.AppBinary(t)
	story.Run(t, &story.Installation{
		Kubeconfig: server.Kubeconfig,
		Namespace:  "default",
		Container: func(variable, value string) map[string]any {
			return map[string]any{"image": "ko.local/app", "command": []any{program}, "env": []any{map[string]any{"name": variable, "value": value}}}
		},
		Sink:    harness.NewSink(t),
		Ingress: http.DefaultClient,
		Kill: func(t *testing.T) {
			server.Kill()
			server = harness.RunStandalone(t, dir)
		},
		Replicas: func(*testing.T) [][]string { return [][]string{nil} },
	})
}

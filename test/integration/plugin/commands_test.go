package plugin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// succeeds runs a command that must succeed, and returns its output.
func succeeds(t testing.TB, kubectl *harness.Plugin, args ...string) string {
	t.Helper()
	result := kubectl.Run(t, args...)
	if result.Code != 0 || result.Stderr != "" {
		t.Fatalf("kubectl knative %s: exit code %d\n%s%s", strings.Join(args, " "), result.Code, result.Stdout, result.Stderr)
	}
	return result.Stdout
}

// matches reports an error unless the lines of text match the patterns, one after another, perhaps with others between.
func matches(t testing.TB, text string, patterns ...string) {
	t.Helper()
	rest := strings.Split(text, "\n")
	for _, pattern := range patterns {
		expression := regexp.MustCompile("^" + pattern + "$")
		found := false
		for len(rest) > 0 && !found {
			found, rest = expression.MatchString(rest[0]), rest[1:]
		}
		if !found {
			t.Fatalf("no line %s at its place in:\n%s", pattern, text)
		}
	}
}

// TestCommands runs the commands in all formats against objects with events.
func TestCommands(t *testing.T) {
	const namespace = "commands"
	shared.shop(t, namespace)
	kubectl := harness.NewPlugin(t, shared.Kubeconfig, namespace)

	t.Run("trace", func(t *testing.T) {
		const clock = `\d\d:\d\d:\d\d\.\d{3}`
		text := succeeds(t, kubectl, "trace", "broker", "orders", "--id", "1001", "--source", "/shop")
		matches(t, text,
			`Event 1001, type com\.example\.order: accepted by Broker orders at `+clock+` from 127\.0\.0\.1`,
			`├─ Trigger failing: DeadLettered.*`,
			`│  ├─ attempt 1 at `+clock+` to http://\S+/failing: 503 after \S+: .*, next attempt at `+clock,
			`│  ├─ attempt 2 at `+clock+` to http://\S+/failing: 503 after \S+: .*`,
			`│  ├─ dead letter sink attempt 1 at .*: 202 after \S+`,
			`│  └─ Dead letter: Event 1001, type com\.example\.order: accepted by Channel mails at `+clock+`.*`,
			`│     └─ Subscription archive: Delivered`,
			`│        └─ attempt 1 at `+clock+` to http://\S+/archive: 202 after \S+`,
			`├─ Trigger hello: Delivered`,
			`└─ Trigger refunds: not matched: filter\.attributes\.type must be "com\.example\.refund".*`,
		)
		for _, args := range [][]string{{"trace", "orders", "--trace-id", traceID}, {"trace", "broker/orders", "--id", "1001", "-o", "wide"}, {"trace", "channel", "mails", "--id", "1001"}} {
			matches(t, succeeds(t, kubectl, args...), "Event 1001, type .*")
		}
		trace := &duckv1.EventTrace{}
		decode(t, succeeds(t, kubectl, "trace", "broker", "orders", "--id", "1001", "-o", "json"), json.Unmarshal, trace)
		if trace.Kind != "EventTrace" || trace.APIVersion != "eventing.knative.dev/v1" || trace.Name != "orders" || len(trace.Events) != 2 {
			t.Errorf("as JSON, it is %+v", trace)
		}
		same := &duckv1.EventTrace{}
		decode(t, succeeds(t, kubectl, "trace", "broker", "orders", "--id", "1001", "-o", "yaml"), func(data []byte, to any) error { return yaml.UnmarshalStrict(data, to) }, same)
		if same.Kind != "EventTrace" || len(same.Events) != 2 {
			t.Errorf("as YAML, it is %+v", same)
		}
	})

	t.Run("explain", func(t *testing.T) {
		matches(t, succeeds(t, kubectl, "explain", "service", "hello"), `Revision hello-00001 \(100 % of Service hello\): \d+ of \d+ instances ready`, `  Reason: +\w+: .*`, `  Limits: +at least 0, no maximum.*`, `  Decided since: .*`)
		matches(t, succeeds(t, kubectl, "explain", "revision", "hello-00001", "-o", "wide"), `Revision hello-00001: .*`)
		matches(t, succeeds(t, kubectl, "explain", "hello", "--all"), `Revision hello-00001 .*`)
		explanation := &servingv1.RevisionExplanation{}
		decode(t, succeeds(t, kubectl, "explain", "revision/hello-00001", "-o", "json"), json.Unmarshal, explanation)
		if explanation.Kind != "RevisionExplanation" || explanation.Name != "hello-00001" {
			t.Errorf("as JSON, it is %+v", explanation)
		}
		list := struct {
			metav1.TypeMeta
			Items []servingv1.RevisionExplanation
		}{}
		decode(t, succeeds(t, kubectl, "explain", "service/hello", "-o", "yaml"), func(data []byte, to any) error { return yaml.Unmarshal(data, to) }, &list)
		if list.Kind != "List" || len(list.Items) != 1 || list.Items[0].Kind != "RevisionExplanation" {
			t.Errorf("as YAML, it is %+v", list)
		}
	})

	t.Run("match", func(t *testing.T) {
		matches(t, succeeds(t, kubectl, "match", "hello", "--type", shopType), `The event matches`, `FILTER +RESULT +REASON`, `spec\.filter\.attributes\.type +Passed.*`)
		file := filepath.Join(t.TempDir(), "event.json")
		if err := os.WriteFile(file, []byte(`{"specversion": "1.0", "id": "1", "source": "/s", "type": "other"}`), 0o600); err != nil {
			t.Fatal(err)
		}
		refused := kubectl.Run(t, "match", "trigger/hello", "-f", file, "-o", "json")
		match := &eventingv1.TriggerMatch{}
		decode(t, refused.Stdout, json.Unmarshal, match)
		if refused.Code != 1 || match.Status.Matched || match.Kind != "TriggerMatch" || !strings.Contains(refused.Stderr, "the event does not match") {
			t.Errorf("an event of another type: exit code %d, %+v, %s", refused.Code, match, refused.Stderr)
		}
	})

	t.Run("tail", func(t *testing.T) {
		tail := kubectl.Start(t, "tail", "orders", "--filter", "id LIKE '20%'", "--data")
		if _, err := tail.WaitForOutput(regexp.MustCompile("Waiting for events")); err != nil {
			t.Fatal(err)
		}
		shared.send(t, namespace, "1999", otherType)
		shared.send(t, namespace, "2000", otherType)
		if _, err := tail.WaitForOutput(regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3}  2000  type com\.example\.other  source /shop  data \{\}$`)); err != nil {
			t.Error(err)
		}
		if strings.Contains(tail.Log(), "1999") {
			t.Errorf("an event that the filter does not pass is shown:\n%s", tail.Log())
		}
		if err := tail.Stop(); err != nil {
			t.Error(err)
		}
		if code, err := tail.ExitCode(); err != nil || code != 0 {
			t.Errorf("exit code %d, %v", code, err)
		}
	})

	t.Run("top", func(t *testing.T) {
		matches(t, succeeds(t, kubectl, "top", "services", "--interval", "100ms"), `NAME +REQUESTS/S +FAILURES/S +LATENCY +INSTANCES +LOAD +WAITING`, `hello +[\d.]+ +[\d.]+ +\S+ +\d+/\d+ .*`)
		matches(t, succeeds(t, kubectl, "top", "services", "-A", "-o", "wide", "--interval", "100ms"), `NAMESPACE +NAME .* REVISION`, namespace+` +hello .* hello-00001`)
		matches(t, succeeds(t, kubectl, "top", "brokers", "--interval", "100ms"), `NAME +ACCEPTED/S +MATCHED/S +OLDEST`, `orders +[\d.]+ +[\d.]+ +\S+`)
		matches(t, succeeds(t, kubectl, "top", "triggers", "--interval", "100ms"), `NAME +MATCHED/S .*`, `failing .*`, `hello .*`, `refunds .*`)
		matches(t, succeeds(t, kubectl, "top", "subscriptions", "--interval", "100ms"), `NAME +MATCHED/S .*`, `archive .*`)
		measured := map[string][]map[string]any{}
		decode(t, succeeds(t, kubectl, "top", "channels", "--interval", "100ms", "-o", "json"), json.Unmarshal, &measured)
		if events := measured["events"]; len(events) != 1 || events[0]["name"] != "mails" {
			t.Errorf("as JSON, it is %v", measured)
		}
		watched := kubectl.Start(t, "top", "triggers", "--watch", "--interval", "100ms")
		if _, err := watched.WaitForOutput(regexp.MustCompile(`(?s)refunds .*\n\nNAME .*refunds `)); err != nil {
			t.Error(err)
		}
	})

	t.Run("graph", func(t *testing.T) {
		matches(t, succeeds(t, kubectl, "graph"),
			`Broker orders: ready`,
			`├─ Trigger failing \[type=com\.example\.order\]: ready`, `│  ├─ -> http://\S+/failing`, `│  ├─ reply -> Broker orders: ready`, `│  └─ dead letters -> Channel mails: ready`,
			`├─ Trigger hello \[type=com\.example\.order\]: ready`, `│  ├─ -> Service hello: ready`, `│  └─ reply -> Broker orders: ready`,
			`└─ Trigger refunds \[type=com\.example\.refund\]: ready`,
			`Channel mails: ready`, `└─ Subscription archive: ready`, `   └─ -> http://\S+/archive`,
		)
		matches(t, succeeds(t, kubectl, "graph", "-A", "-o", "wide"), `Broker `+namespace+`/orders: ready`)
		matches(t, succeeds(t, kubectl, "graph", "-o", "dot"), `digraph knative \{`, `  "Broker/`+namespace+`/orders" -> "Trigger/`+namespace+`/hello" \[style=solid\]`, `\}`)
		for format, unmarshal := range map[string]func([]byte, any) error{"json": json.Unmarshal, "yaml": func(data []byte, to any) error { return yaml.Unmarshal(data, to) }} {
			g := map[string][]map[string]any{}
			decode(t, succeeds(t, kubectl, "graph", "-o", format), unmarshal, &g)
			if len(g["nodes"]) != 9 || len(g["edges"]) != 12 {
				t.Errorf("as %s, it has %d nodes and %d edges: %v", format, len(g["nodes"]), len(g["edges"]), g)
			}
		}
		nothing := kubectl.Run(t, "graph", "--as", "jane", "--as-group", "system:masters", "-s", shared.URL)
		if nothing.Code != 0 {
			t.Errorf("with flags of kubectl: %+v", nothing)
		}
	})

	t.Run("replay", func(t *testing.T) {
		matches(t, succeeds(t, kubectl, "replay", "broker/orders", "--from", "1h", "--type", shopType, "--rate", "10", "--trigger", "refunds", "--wait"),
			`EventRun trigger-refunds has ended: 1 events are queued for delivery`)
	})

	t.Run("deadletters and redrive", func(t *testing.T) {
		shared.breakTrigger(t, namespace)
		name := ""
		await := func(what string) {
			t.Helper()
			harness.Eventually(t, what, func() error {
				list := &eventingv1alpha1.DeadLetterList{}
				decode(t, succeeds(t, kubectl, "deadletters", "-l", "eventing.knative.dev/trigger=broken", "-o", "json"), json.Unmarshal, list)
				if len(list.Items) != 1 || list.Items[0].Event.ID != "3001" || list.Items[0].Name == name {
					return fmt.Errorf("the dead letters are %+v", list.Items)
				}
				name = list.Items[0].Name
				return nil
			})
		}
		await("the event is a dead letter")
		matches(t, succeeds(t, kubectl, "redrive", "trigger/broken", "--type", "com.example.broken", "--cesql", "id = '3001'", "--rate", "100", "--wait"),
			`EventRun trigger-broken has ended: 1 of 1 events are queued for delivery`)
		await("the event is another dead letter, because the subscriber still fails")
		matches(t, succeeds(t, kubectl, "deadletters", "-o", "wide"), `NAME +ID +TYPE +OBJECT +ATTEMPTS +CODE +AGE +SOURCE +SUBSCRIBER +ERROR`,
			name+` +3001 +com\.example\.broken +Trigger broken +1 +418 +\S+ +/shop +http://\S+ +POST .*`)
		matches(t, succeeds(t, kubectl, "deadletters", name), `Event: +3001, type com\.example\.broken, source /shop`, `Accepted by: +Broker orders`, `Failed for: +Trigger broken`,
			`Failure: +1 attempts, last code 418: .*`, `Data:`, `\{\}`)
		kubectl.Must(t, "", "delete", "deadletter", name)
		if none := kubectl.Run(t, "deadletters"); none.Code != 0 || none.Stdout != "" || !strings.Contains(none.Stderr, "No dead letters found in namespace "+namespace) {
			t.Errorf("after the deletion: exit code %d\n%s%s", none.Code, none.Stdout, none.Stderr)
		}
	})
}

func decode(t testing.TB, text string, unmarshal func([]byte, any) error, to any) {
	t.Helper()
	if err := unmarshal([]byte(text), to); err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
}

// TestErrors checks the errors for unknown objects, for users without permissions, and for servers that do not answer.
func TestErrors(t *testing.T) {
	const namespace = "errors"
	kubectl := harness.NewPlugin(t, shared.Kubeconfig, namespace)
	if _, err := shared.Knative.EventingV1().Brokers(namespace).Create(t.Context(), broker(namespace, "orders"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"trace broker none --id 1":             `Error from server (NotFound): brokers.eventing.knative.dev "none" not found`,
		"trace channel none --id 1":            `Error from server (NotFound): channels.messaging.knative.dev "none" not found`,
		"trace broker orders --id 1":           `error: broker "orders" has no record of this event`,
		"trace orders --trace-id 1":            `Error from server (BadRequest): `,
		"explain service none":                 `Error from server (NotFound): services.serving.knative.dev "none" not found`,
		"explain revision none":                `Error from server (NotFound): revisions.serving.knative.dev "none" not found`,
		"logs service none":                    `Error from server (NotFound): services.serving.knative.dev "none" not found`,
		"logs service none -f":                 `Error from server (NotFound): services.serving.knative.dev "none" not found`,
		"logs revision none -f":                `Error from server (NotFound): revisions.serving.knative.dev "none" not found`,
		"trace broker orders --id 1 --as jane": `Error from server (Forbidden): brokers.eventing.knative.dev "orders" is forbidden: User "jane" cannot get resource "brokers/trace"`,
		"explain service hello --as jane":      `Error from server (Forbidden): services.serving.knative.dev "hello" is forbidden: User "jane" cannot get resource "services"`,
		"explain revision hello-1 --as jane":   `Error from server (Forbidden): revisions.serving.knative.dev "hello-1" is forbidden: User "jane" cannot get resource "revisions/explain"`,
		"logs revision hello-1 --as jane":      `Error from server (Forbidden): revisions.serving.knative.dev "hello-1" is forbidden: User "jane" cannot get resource "revisions/log"`,
		"logs service hello -f --as jane":      `Error from server (Forbidden): services.serving.knative.dev "hello" is forbidden`,
		"top brokers --as jane":                `eventmetrics.eventing.knative.dev is forbidden: User "jane" cannot list`,
		"graph --as jane":                      `Error from server (Forbidden): `,
		"graph -s https://127.0.0.1:1":         `connection refused`,
		"graph --context none":                 `context "none" does not exist`,
	} {
		result := kubectl.Run(t, strings.Fields(args)...)
		if result.Code != 1 || !strings.Contains(result.Stderr, want) || result.Stdout != "" {
			t.Errorf("kubectl knative %s: exit code %d, want an error with %q\n%s%s", args, result.Code, want, result.Stdout, result.Stderr)
		}
	}
	empty := harness.NewPlugin(t, shared.Kubeconfig, "empty")
	for args, want := range map[string]string{
		"graph":                         "No Brokers, Channels and Services found in namespace empty.\n",
		"top triggers --interval 100ms": "No triggers found.\n",
	} {
		if result := empty.Run(t, strings.Fields(args)...); result.Code != 0 || result.Stderr != want || result.Stdout != "" {
			t.Errorf("kubectl knative %s: %+v, want %q", args, result, want)
		}
	}
}

// TestCompletion completes like kubectl: commands, types, names of objects and formats.
func TestCompletion(t *testing.T) {
	const namespace = "completion"
	for _, name := range []string{"orders", "others"} {
		if _, err := shared.Knative.EventingV1().Brokers(namespace).Create(t.Context(), broker(namespace, name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	kubectl := harness.NewPlugin(t, shared.kubeconfig(t, namespace), "")
	for args, want := range map[string]string{
		"":                          "trace",
		"trace ":                    "broker",
		"trace o":                   "orders",
		"trace broker o":            "others",
		"trace broker/o":            "broker/orders",
		"graph -o d":                "dot",
		"top tr":                    "triggers",
		"trace broker orders --sou": "--source",
	} {
		result := kubectl.Complete(t, strings.Split(args, " ")...)
		found := false
		for line := range strings.Lines(result.Stdout) {
			completion, _, _ := strings.Cut(strings.TrimSpace(line), "\t")
			found = found || completion == want
		}
		if !found {
			t.Errorf("kubectl knative %s: no completion %q in:\n%s%s", args, want, result.Stdout, result.Stderr)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if result := kubectl.Run(t, "completion", shell); result.Code != 0 || !strings.Contains(result.Stdout, "kubectl-knative") {
			t.Errorf("completion %s: %d %s", shell, result.Code, result.Stderr)
		}
	}
}

package plugin

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/inspect"
)

// TestBadArguments are rejected with an error that names the valid values, before any request.
func TestBadArguments(t *testing.T) {
	t.Setenv("KUBECONFIG", t.TempDir()+"/none")
	for args, want := range map[string]string{
		"unknown":             `unknown command "unknown"`,
		"trace broker orders": "at least one of the flags in the group [id trace-id] is required",
		"trace broker orders --id 1 --trace-id 2": "[id trace-id]",
		"trace broker orders --id 1 -o table":     "unknown output format 'table'; valid formats are json, yaml, wide",
		"trace trigger orders --id 1":             "unknown type 'trigger'; valid types are broker, channel",
		"trace broker --id 1":                     "one object must be named, as TYPE NAME or TYPE/NAME; valid types are broker, channel",
		"trace broker/a/b --id 1":                 "'a/b' is not the name of a broker",
		"explain service/":                        "one object must be named",
		"explain a b c":                           "accepts between 1 and 2 arg(s), received 3",
		"logs service hello --tail -2":            "--tail must be at least -1, not -2",
		"logs service hello --since 1ms":          "--since must be at least 1s, not 1ms",
		"top revisions":                           "unknown type 'revisions'; valid types are service, broker, trigger, channel, subscription",
		"top services --interval 1ms":             "--interval must be at least 100ms, not 1ms",
		"graph -o table":                          "unknown output format 'table'; valid formats are json, yaml, wide, dot",
		"match hello":                             "at least one of the flags in the group [file type] is required",
		"match hello -f /none":                    "--file: open /none",
		"deadletters a -l a=b":                    "a dead letter is selected by NAME or by selectors, not by both",
		"redrive broker/orders":                   "unknown type 'broker'; valid types are trigger, subscription",
		"redrive billing --rate 0":                "--rate must be at least 1, not 0",
		"replay trigger/billing":                  "unknown type 'trigger'; valid types are broker",
		"replay orders --rate 0":                  "--rate must be at least 1, not 0",
		"replay orders --from yesterday":          "--from must be a time such as 2026-01-02T15:04:05Z, or a duration such as 2h, not 'yesterday'",
		"replay orders --to -2h":                  "--to must be a time",
		"tail orders -o yaml":                     "unknown output format 'yaml'; valid formats are json, wide",
		"graph extra":                             `unknown command "extra"`,
	} {
		var out, errs bytes.Buffer
		if code := Run(t.Context(), Streams{Out: &out, Err: &errs}, strings.Fields(args)); code != 1 || !strings.Contains(errs.String(), want) || out.Len() > 0 {
			t.Errorf("%s: code %d, want an error with %q\n%s%s", args, code, want, errs.String(), out.String())
		}
	}
}

// TestHelp names the program as users call it.
func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	if code := Run(t.Context(), Streams{Out: &out, Err: &errs}, []string{"trace", "--help"}); code != 0 || !strings.Contains(out.String(), "kubectl knative trace (broker|channel) NAME") {
		t.Errorf("code %d\n%s%s", code, out.String(), errs.String())
	}
}

// TestObject parses all forms of an argument.
func TestObject(t *testing.T) {
	all := kinds{services, revisions}
	for args, want := range map[string]string{
		"hello": "service hello", "service hello": "service hello", "ksvc/hello": "service hello", "revision/hello-1": "revision hello-1",
		"services.serving.knative.dev hello": "service hello", "Revisions hello-1": "revision hello-1", "service service": "service service",
	} {
		kind, name, err := all.object(strings.Fields(args))
		if err != nil || kind.singular+" "+name != want {
			t.Errorf("%s: %v %s, %v, want %s", args, kind, name, err, want)
		}
	}
}

// TestMessage formats errors like kubectl.
func TestMessage(t *testing.T) {
	notFound := apierrors.NewNotFound(servingv1.Resource("services"), "hello")
	for want, err := range map[string]error{
		`Error from server (NotFound): services.serving.knative.dev "hello" not found`:      notFound,
		`Error from server (NotFound): get: services.serving.knative.dev "hello" not found`: fmt.Errorf("get: %w", notFound),
		"error: no configuration": errors.New("no configuration"),
	} {
		if got := message(err); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestStructured prints objects with their kind, and other values as they are.
func TestStructured(t *testing.T) {
	service := &servingv1.Service{ObjectMeta: metav1.ObjectMeta{Name: "hello"}}
	for format, want := range map[string]string{"json": "\"apiVersion\": \"serving.knative.dev/v1\",\n", "yaml": "kind: Service\n"} {
		var out bytes.Buffer
		o := output{format: format}
		if printed, err := o.structured(&out, service); !printed || err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%s: %t, %v, want %q in\n%s", format, printed, err, want, out.String())
		}
		out.Reset()
		if printed, err := o.structured(&out, &inspect.Graph{Nodes: []*inspect.GraphNode{}}); !printed || err != nil || !strings.Contains(out.String(), "nodes") {
			t.Errorf("%s: %t, %v\n%s", format, printed, err, out.String())
		}
	}
	for _, format := range []string{"", "wide"} {
		if printed, err := (&output{format: format}).structured(nil, service); printed || err != nil {
			t.Errorf("%q: %t, %v", format, printed, err)
		}
	}
}

package standalone

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// The file is read again when it changes, and no token is valid while it is missing or malformed.
func TestTokenFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "tokens.csv")
	if _, err := OpenTokenFile(path); err == nil {
		t.Error("a missing file is accepted")
	}
	modified := time.Unix(1e9, 0)
	write := func(content string) {
		t.Helper()
		modified = modified.Add(time.Second)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, modified, modified); err != nil {
			t.Fatal(err)
		}
	}
	write(`one,jane,1,"a,b"` + "\n")
	tokens, err := OpenTokenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx := authenticator.WithAudiences(t.Context(), []string{"http://hello"})
	response, ok, err := tokens.AuthenticateToken(ctx, "one")
	if err != nil || !ok || response.User.GetName() != "jane" || !slices.Equal(response.User.GetGroups(), []string{"a", "b"}) ||
		!slices.Equal(response.Audiences, []string{"http://hello"}) {
		t.Fatalf("got %+v, %v, %v", response, ok, err)
	}
	write("two,joe,2\n")
	if _, ok, err := tokens.AuthenticateToken(ctx, "one"); ok || err != nil {
		t.Errorf("removed token: %v, %v", ok, err)
	}
	if response, ok, err := tokens.AuthenticateToken(ctx, "two"); !ok || err != nil || response.User.GetName() != "joe" {
		t.Errorf("added token: %v, %v", ok, err)
	}
	write("two\n")
	if _, ok, err := tokens.AuthenticateToken(ctx, "two"); ok || err == nil {
		t.Errorf("malformed file: %v, %v", ok, err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := tokens.AuthenticateToken(ctx, "two"); ok || err == nil {
		t.Errorf("removed file: %v, %v", ok, err)
	}
}

// Groups decide who may invoke Services, and nothing else.
func TestAuthorizeInvokers(t *testing.T) {
	for _, test := range []struct {
		groups                 []string
		verb, group, namespace string
		want                   authorizer.Decision
	}{
		{[]string{"knative:invokers"}, "invoke", "serving.knative.dev", "a", authorizer.DecisionAllow},
		{[]string{"x", "knative:invokers:a"}, "invoke", "serving.knative.dev", "a", authorizer.DecisionAllow},
		{[]string{"knative:invokers:a"}, "invoke", "serving.knative.dev", "b", authorizer.DecisionNoOpinion},
		{[]string{"knative:invokers"}, "get", "serving.knative.dev", "a", authorizer.DecisionNoOpinion},
		{[]string{"knative:invokers"}, "invoke", "", "a", authorizer.DecisionNoOpinion},
		{nil, "invoke", "serving.knative.dev", "a", authorizer.DecisionNoOpinion},
	} {
		got, _, err := AuthorizeInvokers(t.Context(), authorizer.AttributesRecord{
			User: &user.DefaultInfo{Groups: test.groups}, Verb: test.verb, APIGroup: test.group, Resource: "services", Namespace: test.namespace, ResourceRequest: true,
		})
		if err != nil || got != test.want {
			t.Errorf("%+v: got %v, %v", test, got, err)
		}
	}
}

package standalone

import (
	"context"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
)

// TestAccountTokens checks that a token is valid for its audiences, until it expires, in the process that issued it.
func TestAccountTokens(t *testing.T) {
	c := clocktesting.NewFakePassiveClock(time.Now())
	tokens := NewAccountTokens(c)
	account := types.NamespacedName{Namespace: "shop", Name: "orders"}
	answer, err := tokens.RequestToken(t.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{Audiences: []string{"a"}, ExpirationSeconds: ptr.To[int64](3600)},
	})
	if err != nil {
		t.Fatal(err)
	}
	token := answer.Status.Token
	valid := func(by *AccountTokens, token string, audiences ...string) string {
		t.Helper()
		ctx := context.WithoutCancel(t.Context())
		if audiences != nil {
			ctx = authenticator.WithAudiences(ctx, audiences)
		}
		response, ok, _ := by.AuthenticateToken(ctx, token)
		if !ok {
			return ""
		}
		return response.User.GetName()
	}
	const name = "system:serviceaccount:shop:orders"
	for what, test := range map[string]struct{ got, want string }{
		"its audience":      {valid(tokens, token, "b", "a"), name},
		"another audience":  {valid(tokens, token, "b"), ""},
		"no audience":       {valid(tokens, token), ""},
		"another process":   {valid(NewAccountTokens(c), token, "a"), ""},
		"changed":           {valid(tokens, "x"+token, "a"), ""},
		"without signature": {valid(tokens, token[:10], "a"), ""},
		"empty":             {valid(tokens, "", "a"), ""},
	} {
		if test.got != test.want {
			t.Errorf("%s: user %q, want %q", what, test.got, test.want)
		}
	}
	if _, err := tokens.RequestToken(t.Context(), account, &authenticationv1.TokenRequest{}); err == nil {
		t.Error("a token without audience is issued")
	}
	c.SetTime(answer.Status.ExpirationTimestamp.Time)
	if got := valid(tokens, token, "a"); got != "" {
		t.Errorf("expired: user %q", got)
	}
}

package identity

import (
	"context"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

func TestMade(t *testing.T) {
	named := func(name string, groups ...string) user.Info { return &user.DefaultInfo{Name: name, Groups: groups} }
	tests := []struct {
		name       string
		configured []string
		user       user.Info
		want       bool
	}{
		{name: "the in-process controllers", user: NewControllers(), want: true},
		{name: "no user", user: nil},
		{name: "cluster-admin", user: named("admin", user.SystemPrivilegedGroup)},
		{name: "the controllers' name, impersonated", user: named(ControllersUser, user.SystemPrivilegedGroup)},
		{name: "the API server's own loopback user", user: named(user.APIServerUser, user.SystemPrivilegedGroup)},
		{name: "a configured user", configured: []string{"x", "system:serviceaccount:a:b"}, user: named("system:serviceaccount:a:b"), want: true},
		{name: "another than the configured user", configured: []string{"system:serviceaccount:a:b"}, user: named("system:serviceaccount:a:c")},
		{name: "an empty name is not a configured one", configured: []string{""}, user: named("")},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			ctx := context.Background()
			if test.user != nil {
				ctx = request.WithUser(ctx, test.user)
			}
			if got := (Controllers{UserNames: test.configured}).Made(ctx); got != test.want {
				t.Errorf("Made() = %v, want %v", got, test.want)
			}
		})
	}
}

func TestAuthenticator(t *testing.T) {
	token := NewToken()
	for _, test := range []struct {
		name, configured, header string
		want                     bool
	}{
		{name: "the token", configured: token, header: "Bearer " + token, want: true},
		{name: "another token", configured: token, header: "Bearer " + NewToken()},
		{name: "no token", configured: token},
		{name: "a prefix of the token", configured: token, header: "Bearer " + token[:len(token)-1]},
		{name: "no token configured", header: "Bearer "},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := httptest.NewRequest("GET", "/", nil)
			if test.header != "" {
				r.Header.Set("Authorization", test.header)
			}
			response, ok, _ := Authenticator(test.configured).AuthenticateRequest(r)
			if ok != test.want {
				t.Fatalf("authenticated = %v, want %v", ok, test.want)
			}
			if ok && !(Controllers{}).Made(request.WithUser(r.Context(), response.User)) {
				t.Error("the authenticated user is not the controllers")
			}
		})
	}
}

// Package identity distinguishes the controllers of this server from all other clients.
//
// Only controllers may perform some writes, regardless of a user's permissions: creating Revisions, listing the
// subscribers of a Channel. A user name does not prove that a client is a controller, because a user with the
// permission to impersonate can use any name. The in-process client of the controllers therefore authenticates with
// a token created at startup, and its identity is a Go type that no external request can obtain.
package identity

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"slices"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// ControllersUser is the user name of the in-process controllers in audit logs and managed fields.
const ControllersUser = "system:knative:controllers"

// controllers is the identity of the in-process controllers.
type controllers struct{ *user.DefaultInfo }

// NewControllers returns the identity of the in-process controllers.
func NewControllers() user.Info {
	return controllers{&user.DefaultInfo{
		Name:   ControllersUser,
		Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup},
	}}
}

// Controllers recognizes the identity of the controllers in the requests that strategies handle.
type Controllers struct {
	// UserNames are further users that count as controllers, for installations that run them in other processes.
	UserNames []string
}

// Made reports whether the request of ctx was made by a controller.
func (c Controllers) Made(ctx context.Context) bool {
	u, ok := request.UserFrom(ctx)
	if !ok {
		return false
	}
	if _, ok := u.(controllers); ok {
		return true
	}
	return u.GetName() != "" && slices.Contains(c.UserNames, u.GetName())
}

// NewToken returns a random bearer token that cannot be guessed.
func NewToken() string { return rand.Text() + rand.Text() }

// Authenticator authenticates requests that carry token as the controllers, and no other requests.
func Authenticator(token string) authenticator.Request {
	return bearertoken.New(tokenAuthenticator(token))
}

type tokenAuthenticator string

func (t tokenAuthenticator) AuthenticateToken(_ context.Context, token string) (*authenticator.Response, bool, error) {
	if t == "" || subtle.ConstantTimeCompare([]byte(t), []byte(token)) != 1 {
		return nil, false, nil
	}
	return &authenticator.Response{User: NewControllers()}, true, nil
}

// Package identity tells the controllers of this server from everybody else.
//
// Some writes belong to controllers alone, whatever rights a user has: creating Revisions, listing the
// subscribers of a Channel. A user name cannot decide that, because whoever may impersonate users can take
// any name. So the controllers' in-process client authenticates with a token made at start-up, and its
// identity is a Go type that no request from outside can be given.
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

// Controllers recognizes the controllers' identity in the requests that strategies see.
type Controllers struct {
	// UserNames are users that count as the controllers too, for installations that run them in other
	// processes.
	UserNames []string
}

// Made tells whether the request of ctx was made by the controllers.
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

// NewToken returns a bearer token that nobody can guess.
func NewToken() string { return rand.Text() + rand.Text() }

// Authenticator authenticates requests that carry token as the controllers, and no others.
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

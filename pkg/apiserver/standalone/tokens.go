package standalone

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TokenFile authenticates by the tokens of a CSV file, as kube-apiserver's --token-auth-file. Changes of the file apply to the next
// request. The tokens are valid for all audiences.
type TokenFile struct {
	path string

	// mu guards the fields below: the content of the file and its version.
	mu       sync.Mutex
	tokens   *tokenfile.TokenAuthenticator
	modified time.Time
	size     int64
}

// OpenTokenFile returns the tokens of a file.
func OpenTokenFile(path string) (*TokenFile, error) {
	f := &TokenFile{path: path}
	_, err := f.current()
	return f, err
}

// AuthenticateToken implements authenticator.Token. While the file is not valid, it returns an error for each token.
func (f *TokenFile) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	tokens, err := f.current()
	if err != nil {
		return nil, false, err
	}
	response, ok, err := tokens.AuthenticateToken(ctx, token)
	if ok && response != nil {
		response.Audiences, _ = authenticator.AudiencesFrom(ctx)
	}
	return response, ok, err
}

// current returns the content of the file, which it reads if it has changed.
func (f *TokenFile) current() (*tokenfile.TokenAuthenticator, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	info, err := os.Stat(f.path)
	if err != nil {
		return nil, fmt.Errorf("read --token-auth-file: %w", err)
	}
	if f.tokens != nil && info.ModTime().Equal(f.modified) && info.Size() == f.size {
		return f.tokens, nil
	}
	tokens, err := tokenfile.NewCSV(f.path)
	if err != nil {
		return nil, fmt.Errorf("read --token-auth-file %s: %w", f.path, err)
	}
	f.tokens, f.modified, f.size = tokens, info.ModTime(), info.Size()
	return tokens, nil
}

// InvokersGroup is the group of the users who may invoke all Services. Followed by ':' and a namespace, it is the group of
// users who may invoke the Services of that namespace.
const InvokersGroup = "knative:invokers"

// AuthorizeInvokers is an authorizer.AuthorizerFunc that authorizes the members of InvokersGroup.
func AuthorizeInvokers(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() != "invoke" || a.GetAPIGroup() != "serving.knative.dev" || a.GetUser() == nil {
		return authorizer.DecisionNoOpinion, "", nil
	}
	groups := a.GetUser().GetGroups()
	if slices.Contains(groups, InvokersGroup) || slices.Contains(groups, InvokersGroup+":"+a.GetNamespace()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

package standalone

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

// AccountTokens issues tokens of ServiceAccounts, and authenticates them, while the process runs: no other process can verify them. They are
// not valid for the API.
type AccountTokens struct {
	secret [sha256.Size]byte
	clock  clock.PassiveClock
}

// NewAccountTokens returns AccountTokens with a key of their own.
func NewAccountTokens(c clock.PassiveClock) *AccountTokens {
	t := &AccountTokens{clock: c}
	rand.Read(t.secret[:])
	return t
}

// claims are the content of a token.
type claims struct {
	Namespace, Name string
	Audiences       []string
	// Expiry is a Unix time in seconds.
	Expiry int64
}

// RequestToken issues a token with the audiences and the lifetime of a request.
func (t *AccountTokens) RequestToken(_ context.Context, account types.NamespacedName, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	lifetime := time.Duration(ptr.Deref(request.Spec.ExpirationSeconds, 0)) * time.Second
	if len(request.Spec.Audiences) == 0 || lifetime <= 0 {
		return nil, errors.New("the request must name audiences and a lifetime")
	}
	expiry := t.clock.Now().Add(lifetime)
	content, err := json.Marshal(claims{account.Namespace, account.Name, request.Spec.Audiences, expiry.Unix()})
	if err != nil {
		return nil, fmt.Errorf("write token: %w", err)
	}
	encoded := base64.RawURLEncoding.EncodeToString(content)
	answer := request.DeepCopy()
	answer.Status = authenticationv1.TokenRequestStatus{
		Token: encoded + "." + base64.RawURLEncoding.EncodeToString(t.sum(encoded)), ExpirationTimestamp: metav1.NewTime(expiry),
	}
	return answer, nil
}

func (t *AccountTokens) sum(encoded string) []byte {
	mac := hmac.New(sha256.New, t.secret[:])
	mac.Write([]byte(encoded))
	return mac.Sum(nil)
}

// AuthenticateToken implements authenticator.Token, for tokens that have one of the audiences of the context.
func (t *AccountTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	encoded, signature, _ := strings.Cut(token, ".")
	if !hmac.Equal([]byte(signature), []byte(base64.RawURLEncoding.EncodeToString(t.sum(encoded)))) {
		return nil, false, nil
	}
	var c claims
	content, err := base64.RawURLEncoding.DecodeString(encoded)
	if err == nil {
		err = json.Unmarshal(content, &c)
	}
	if err != nil {
		return nil, false, fmt.Errorf("read token: %w", err)
	}
	wanted, _ := authenticator.AudiencesFrom(ctx)
	audiences := slices.DeleteFunc(slices.Clone(c.Audiences), func(a string) bool { return !slices.Contains(wanted, a) })
	if t.clock.Now().Unix() >= c.Expiry || len(audiences) == 0 {
		return nil, false, nil
	}
	return &authenticator.Response{Audiences: audiences, User: serviceaccount.UserInfo(c.Namespace, c.Name, "")}, true, nil
}

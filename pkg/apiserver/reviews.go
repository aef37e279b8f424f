package apiserver

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// TokenReviews answers TokenReviews in process, for a server without a host cluster.
type TokenReviews struct {
	// tokens is nil without --token-auth-file: no token is valid then.
	tokens authenticator.Token
}

// With returns reviews of the same tokens and of more.
func (r *TokenReviews) With(more authenticator.Token) *TokenReviews {
	if r == nil || r.tokens == nil {
		return &TokenReviews{more}
	}
	return &TokenReviews{union.New(r.tokens, more)}
}

// Create returns a review with its status.
func (r *TokenReviews) Create(ctx context.Context, review *authenticationv1.TokenReview, _ metav1.CreateOptions) (*authenticationv1.TokenReview, error) {
	review = review.DeepCopy()
	if r.tokens == nil {
		return review, nil
	}
	ctx = authenticator.WithAudiences(ctx, review.Spec.Audiences)
	response, ok, err := r.tokens.AuthenticateToken(ctx, review.Spec.Token)
	if err != nil {
		return nil, err
	}
	if !ok || response == nil {
		return review, nil
	}
	review.Status = authenticationv1.TokenReviewStatus{
		Authenticated: true, Audiences: response.Audiences,
		User: authenticationv1.UserInfo{Username: response.User.GetName(), UID: response.User.GetUID(), Groups: response.User.GetGroups()},
	}
	return review, nil
}

// AccessReviews answers SubjectAccessReviews of resources in process, for a server without a host cluster.
type AccessReviews struct{ authorizer authorizer.Authorizer }

// Create returns a review with its status.
func (r *AccessReviews) Create(ctx context.Context, review *authorizationv1.SubjectAccessReview, _ metav1.CreateOptions) (*authorizationv1.SubjectAccessReview, error) {
	review = review.DeepCopy()
	resource := review.Spec.ResourceAttributes
	if resource == nil {
		return review, nil
	}
	decision, reason, err := r.authorizer.Authorize(ctx, authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: review.Spec.User, UID: review.Spec.UID, Groups: review.Spec.Groups},
		Verb: resource.Verb, APIGroup: resource.Group, Resource: resource.Resource, Subresource: resource.Subresource,
		Namespace: resource.Namespace, Name: resource.Name, ResourceRequest: true,
	})
	if err != nil {
		return nil, err
	}
	review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: decision == authorizer.DecisionAllow, Reason: reason}
	return review, nil
}

// TokenReviews returns the reviews of tokens. Only a server without a host cluster has them.
func (s *Server) TokenReviews() *TokenReviews { return s.tokenReviews }

// AccessReviews returns the reviews of access. Only a server without a host cluster has them.
func (s *Server) AccessReviews() *AccessReviews { return s.accessReviews }

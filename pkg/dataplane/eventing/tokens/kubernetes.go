package tokens

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
)

// Kubernetes requests tokens from a cluster by TokenRequests.
type Kubernetes struct {
	Client corev1client.ServiceAccountsGetter
}

// RequestToken implements Requester.
func (k Kubernetes) RequestToken(ctx context.Context, account types.NamespacedName, request *authenticationv1.TokenRequest) (*authenticationv1.TokenRequest, error) {
	return k.Client.ServiceAccounts(account.Namespace).CreateToken(ctx, account.Name, request, metav1.CreateOptions{})
}

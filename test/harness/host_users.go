package harness

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// WithToken returns the configuration of a client of the same server that authenticates with a token.
func WithToken(config *rest.Config, token string) *rest.Config {
	config = rest.AnonymousClientConfig(config)
	config.BearerToken = token
	return config
}

// Token returns a token of a ServiceAccount for audiences, by default the host's API.
func (c *Cluster) Token(ctx context.Context, namespace, name string, audiences ...string) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: audiences, ExpirationSeconds: ptr.To(int64(tokenLifetime.Seconds())),
	}}
	response, err := c.Host.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return response.Status.Token, nil
}

// ServiceAccount creates a ServiceAccount in a namespace and returns the configuration of its client.
func (c *Cluster) ServiceAccount(t testing.TB, namespace, name string) *rest.Config {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if _, err := c.Host.CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := c.Token(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	return WithToken(c.Admin.Config, token)
}

// User returns the configuration of a client with a certificate that the host issued to name.
func (c *Cluster) User(t testing.TB, name string, groups ...string) *rest.Config {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.CertificateRequest{Subject: pkix.Name{CommonName: name, Organization: groups}}
	request, err := x509.CreateCertificateRequest(rand.Reader, template, key)
	if err != nil {
		t.Fatal(err)
	}
	config := rest.AnonymousClientConfig(c.Admin.Config)
	config.KeyData = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der})
	config.CertData = c.sign(t, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: request}))
	return config
}

// sign requests a client certificate from the host.
func (c *Cluster) sign(t testing.TB, request []byte) []byte {
	t.Helper()
	requests := c.Host.CertificatesV1().CertificateSigningRequests()
	csr, err := requests.Create(t.Context(), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "user-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    request,
			SignerName: certificatesv1.KubeAPIServerClientSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	csr.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{
		Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "Test",
	}}
	if _, err := requests.UpdateApproval(t.Context(), csr.Name, csr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, "the certificate is issued", func() error {
		if csr, err = requests.Get(t.Context(), csr.Name, metav1.GetOptions{}); err != nil {
			return err
		}
		if len(csr.Status.Certificate) == 0 {
			return errors.New("it is not")
		}
		return nil
	})
	return csr.Status.Certificate
}

// Namespace creates a namespace, which is deleted with its content when the test ends, and waits until Pods
// may be created in it. Its name is prefix and a random suffix.
func (c *Cluster) Namespace(t testing.TB, prefix string, labels map[string]string) string {
	t.Helper()
	namespace, err := c.Host.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: prefix + "-", Labels: labels},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	name := namespace.Name
	t.Cleanup(func() {
		err := c.Host.CoreV1().Namespaces().Delete(context.Background(), name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			t.Errorf("delete namespace %s: %v", name, err)
		}
	})
	Eventually(t, fmt.Sprintf("namespace %s has its ServiceAccount", name), func() error {
		_, err := c.Host.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return name
}

// Bind binds a user to a role in a namespace, and waits until the host allows what the role does: kind is Role or ClusterRole. The host's authorizer
// observes bindings a moment after they are written, and the server caches a denial for some seconds.
func (c *Cluster) Bind(t testing.TB, namespace, user, kind, role string) {
	t.Helper()
	_, err := c.Host.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: kind, Name: role},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range c.rulesOf(t, namespace, kind, role) {
		if len(rule.Resources) == 0 || len(rule.ResourceNames) > 0 {
			continue
		}
		resource, subresource, _ := strings.Cut(rule.Resources[0], "/")
		c.AwaitAccess(t, authorizationv1.SubjectAccessReviewSpec{User: user, ResourceAttributes: &authorizationv1.ResourceAttributes{
			Namespace: namespace, Verb: rule.Verbs[0], Group: rule.APIGroups[0], Resource: resource, Subresource: subresource,
		}})
	}
}

// rulesOf returns the rules of a Role of a namespace, or of a ClusterRole.
func (c *Cluster) rulesOf(t testing.TB, namespace, kind, role string) []rbacv1.PolicyRule {
	t.Helper()
	if kind == "Role" {
		found, err := c.Host.RbacV1().Roles(namespace).Get(t.Context(), role, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found.Rules
	}
	found, err := c.Host.RbacV1().ClusterRoles().Get(t.Context(), role, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return found.Rules
}

// AwaitAccess waits until the host allows an access.
func (c *Cluster) AwaitAccess(t testing.TB, access authorizationv1.SubjectAccessReviewSpec) {
	t.Helper()
	Eventually(t, "the host allows "+access.User+" the access", func() error {
		review := &authorizationv1.SubjectAccessReview{Spec: access}
		answer, err := c.Host.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
		if err == nil && !answer.Status.Allowed {
			err = fmt.Errorf("it does not: %s", answer.Status.Reason)
		}
		return err
	})
}

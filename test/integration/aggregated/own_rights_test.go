package aggregated

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

// revisionUID is the label by which the Deployment of a Revision selects its Pods.
const revisionUID = "serving.knative.dev/revisionUID"

// ownPolicies are the policies that restrict the server.
var ownPolicies = []string{"knative-apiserver-pods", "knative-apiserver-owned", "knative-apiserver-scale", "knative-apiserver-accounts", "knative-apiserver-tokens"}

// serverClient is a client with the token of the server.
func serverClient(t *testing.T) (kubernetes.Interface, dynamic.Interface) {
	t.Helper()
	token, err := host.Token(t.Context(), harness.SystemNamespace, harness.ServerName)
	if err != nil {
		t.Fatal(err)
	}
	config := harness.WithToken(host.Admin.Config, token)
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client, objects
}

// ownedDeployment returns a Deployment without Pods.
func ownedDeployment(name, label string, owners ...metav1.OwnerReference) *appsv1.Deployment {
	labels := map[string]string{label: name}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners},
		Spec: appsv1.DeploymentSpec{
			Replicas: ptr.To[int32](0),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example/app"}}},
			},
		},
	}
}

func ownedService(name string, owners ...metav1.OwnerReference) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "gateway.example"},
	}
}

// ownedCertificate returns a Certificate of cert-manager.
func ownedCertificate(name string, owners ...metav1.OwnerReference) *unstructured.Unstructured {
	c := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cert-manager.io/v1", "kind": "Certificate",
		"spec": map[string]any{"dnsNames": []any{"app.example.com"}, "secretName": name, "issuerRef": map[string]any{"name": "issuer"}},
	}}
	c.SetName(name)
	c.SetOwnerReferences(owners)
	return c
}

// TestOwnRights checks that the host rejects requests that the server's roles permit but the server never sends. The token of its
// ServiceAccount creates no Pod except as a dry run, writes only the Deployments of Revisions, the core Services of Routes and Channels,
// the Certificates of Routes and DomainMappings, and the ServiceAccounts of Triggers and Subscriptions, and requests tokens only of those.
func TestOwnRights(t *testing.T) {
	t.Parallel()
	ns := host.Namespace(t, "own-rights", nil)
	server, objects := serverClient(t)
	host.DefineCertManager(t)
	resource := schema.GroupVersionResource{Group: "cert-manager.io", Version: "v1", Resource: "certificates"}
	certificates := objects.Resource(resource).Namespace(ns)
	owner := func(kind string, controller bool) metav1.OwnerReference {
		object := mustCreate(t, harness.KindOf(kind).Object(ns, "owner-"+strings.ToLower(kind)))
		reference := ownerReference(object)
		reference.Controller = ptr.To(controller)
		return reference
	}
	revision, route, channel := owner("Revision", true), owner("Route", true), owner("Channel", true)
	mapping := owner("DomainMapping", true)
	withoutControl := revision
	withoutControl.Controller = nil
	stranger, err := host.Host.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	foreign := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: stranger.Name, UID: stranger.UID, Controller: ptr.To(true)}

	ctx := t.Context()
	deployments, services := server.AppsV1().Deployments(ns), server.CoreV1().Services(ns)
	for _, d := range []*appsv1.Deployment{
		ownedDeployment("tenants", "app"), ownedDeployment("tenants-replaced", "app"),
		ownedDeployment("revisions", revisionUID, revision), ownedDeployment("given-up", revisionUID, revision), ownedDeployment("deleted", revisionUID, revision),
	} {
		if _, err := host.Host.AppsV1().Deployments(ns).Create(ctx, d, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []*corev1.Service{ownedService("tenants"), ownedService("routes", route), ownedService("deleted", channel)} {
		if _, err := host.Host.CoreV1().Services(ns).Create(ctx, s, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	trigger, subscription := owner("Trigger", true), owner("Subscription", true)
	const ofTrigger, ofSubscription = "-oidc-eventing.knative.dev-trigger", "-oidc-messaging.knative.dev-subscription"
	account := func(name string, labelled bool, owners ...metav1.OwnerReference) *corev1.ServiceAccount {
		a := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}
		if labelled {
			a.Labels = map[string]string{"eventing.knative.dev/oidc": "enabled"}
		}
		return a
	}
	accounts := server.CoreV1().ServiceAccounts(ns)
	for _, a := range []*corev1.ServiceAccount{account("tenant", true), account("deleted"+ofTrigger, true, trigger), account("sending"+ofTrigger, true, trigger)} {
		if _, err := host.Host.CoreV1().ServiceAccounts(ns).Create(ctx, a, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	createAccount := func(a *corev1.ServiceAccount) func() error {
		return func() error {
			_, err := accounts.Create(ctx, a, metav1.CreateOptions{})
			return err
		}
	}
	requestToken := func(name string, lifetime int64, audiences ...string) func() error {
		return func() error {
			_, err := accounts.CreateToken(ctx, name, &authenticationv1.TokenRequest{
				Spec: authenticationv1.TokenRequestSpec{Audiences: audiences, ExpirationSeconds: &lifetime},
			}, metav1.CreateOptions{})
			return err
		}
	}
	for _, c := range []*unstructured.Unstructured{ownedCertificate("tenants"), ownedCertificate("routes", route), ownedCertificate("deleted", mapping)} {
		if _, err := host.Admin.Dynamic.Resource(resource).Namespace(ns).Create(ctx, c, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	createCertificate := func(c *unstructured.Unstructured) func() error {
		return func() error {
			_, err := certificates.Create(ctx, c, metav1.CreateOptions{})
			return err
		}
	}
	updateCertificate := func(name string, owners ...metav1.OwnerReference) func() error {
		return func() error {
			existing, err := certificates.Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			updated := ownedCertificate(name, owners...)
			updated.SetResourceVersion(existing.GetResourceVersion())
			updated.SetAnnotations(map[string]string{"touched": "true"})
			_, err = certificates.Update(ctx, updated, metav1.UpdateOptions{})
			return err
		}
	}
	createDeployment := func(d *appsv1.Deployment) func() error {
		return func() error {
			_, err := deployments.Create(ctx, d, metav1.CreateOptions{})
			return err
		}
	}
	createService := func(s *corev1.Service) func() error {
		return func() error {
			_, err := services.Create(ctx, s, metav1.CreateOptions{})
			return err
		}
	}
	patchDeployment := func(name, patch string, subresources ...string) func() error {
		return func() error {
			_, err := deployments.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...)
			return err
		}
	}
	patchService := func(name, patch string) func() error {
		return func() error {
			_, err := services.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
			return err
		}
	}
	createPod := func(name string, dryRun ...string) func() error {
		return func() error {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "app", Image: "registry.example/app"}}},
			}
			_, err := server.CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{DryRun: dryRun})
			return err
		}
	}
	controlled := func(by metav1.OwnerReference) string {
		return fmt.Sprintf(`{"metadata":{"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":%q,"controller":true}]}}`, by.APIVersion, by.Kind, by.Name, by.UID)
	}
	const touch, disown, scale = `{"metadata":{"annotations":{"touched":"true"}}}`, `{"metadata":{"ownerReferences":null}}`, `{"spec":{"replicas":0}}`
	for _, test := range []struct {
		name string
		do   func() error
		// refusing is the policy that refuses; empty if the server may do it.
		refusing string
	}{
		{"create a Pod as a dry run", createPod("dry", metav1.DryRunAll), ""},
		{"create a Pod", createPod("real"), "knative-apiserver-pods"},

		{"create the Deployment of a Revision", createDeployment(ownedDeployment("created", revisionUID, revision)), ""},
		{"create a Deployment without owner", createDeployment(ownedDeployment("mine", "app")), "knative-apiserver-owned"},
		{"create a Deployment of another kind", createDeployment(ownedDeployment("other", "app", foreign)), "knative-apiserver-owned"},
		{"create the Deployment of a Route", createDeployment(ownedDeployment("route", "app", route)), "knative-apiserver-owned"},
		{"create a Deployment whose owner does not control it", createDeployment(ownedDeployment("loose", revisionUID, withoutControl)), "knative-apiserver-owned"},
		{"patch the Deployment of a Revision", patchDeployment("revisions", touch), ""},
		{"patch the Deployment of a tenant", patchDeployment("tenants", touch), "knative-apiserver-owned"},
		{"acquire the Deployment of a tenant", patchDeployment("tenants", controlled(revision)), "knative-apiserver-owned"},
		{"release the Deployment of a Revision", patchDeployment("given-up", disown), "knative-apiserver-owned"},
		{"replace the Deployment of a tenant", func() error {
			_, err := deployments.Update(ctx, ownedDeployment("tenants-replaced", "app", revision), metav1.UpdateOptions{})
			return err
		}, "knative-apiserver-owned"},
		{"scale the Deployment of a Revision", patchDeployment("revisions", scale, "scale"), ""},
		{"scale the Deployment of a tenant", patchDeployment("tenants", scale, "scale"), "knative-apiserver-scale"},
		{"delete the Deployment of a Revision", func() error { return deployments.Delete(ctx, "deleted", metav1.DeleteOptions{}) }, ""},
		{"delete the Deployment of a tenant", func() error { return deployments.Delete(ctx, "tenants", metav1.DeleteOptions{}) }, "knative-apiserver-owned"},

		{"create the Service of a Route", createService(ownedService("of-route", route)), ""},
		{"create the Service of a Channel", createService(ownedService("of-channel", channel)), ""},
		{"create a Service without owner", createService(ownedService("mine")), "knative-apiserver-owned"},
		{"create the Service of a Revision", createService(ownedService("of-revision", revision)), "knative-apiserver-owned"},
		{"create a Service of another kind", createService(ownedService("other", foreign)), "knative-apiserver-owned"},
		{"patch the Service of a Route", patchService("routes", touch), ""},
		{"patch the Service of a tenant", patchService("tenants", touch), "knative-apiserver-owned"},
		{"acquire the Service of a tenant", patchService("tenants", controlled(route)), "knative-apiserver-owned"},
		{"release the Service of a Route", patchService("routes", disown), "knative-apiserver-owned"},
		{"delete the Service of a Channel", func() error { return services.Delete(ctx, "deleted", metav1.DeleteOptions{}) }, ""},
		{"delete the Service of a tenant", func() error { return services.Delete(ctx, "tenants", metav1.DeleteOptions{}) }, "knative-apiserver-owned"},

		{"create the ServiceAccount of a Trigger", createAccount(account("t"+ofTrigger, true, trigger)), ""},
		{"create the ServiceAccount of a Subscription", createAccount(account("s"+ofSubscription, true, subscription)), ""},
		{"create the ServiceAccount of a Trigger with a long name", createAccount(account(strings.Repeat("a", 31)+strings.Repeat("0", 32), true, trigger)), ""},
		{"create a ServiceAccount without owner", createAccount(account("mine"+ofTrigger, true)), "knative-apiserver-owned"},
		{"create the ServiceAccount of a Revision", createAccount(account("revision"+ofTrigger, true, revision)), "knative-apiserver-owned"},
		{"create a ServiceAccount without label", createAccount(account("plain"+ofTrigger, false, trigger)), "knative-apiserver-accounts"},
		{"create a ServiceAccount of another name", createAccount(account("other", true, trigger)), "knative-apiserver-accounts"},
		{"delete the ServiceAccount of a Trigger", func() error { return accounts.Delete(ctx, "deleted"+ofTrigger, metav1.DeleteOptions{}) }, ""},
		{"delete the ServiceAccount of a tenant", func() error { return accounts.Delete(ctx, "tenant", metav1.DeleteOptions{}) }, "knative-apiserver-owned"},
		{"request a token of a Trigger", requestToken("sending"+ofTrigger, 3600, "receiver"), ""},
		{"request a token of a tenant", requestToken("tenant", 3600, "receiver"), "knative-apiserver-tokens"},
		{"request a token for the API", requestToken("sending"+ofTrigger, 3600, "https://kubernetes.default.svc.cluster.local"), "knative-apiserver-tokens"},
		{"request a token for two audiences", requestToken("sending"+ofTrigger, 3600, "receiver", "other"), "knative-apiserver-tokens"},
		{"request a long token", requestToken("sending"+ofTrigger, 7200, "receiver"), "knative-apiserver-tokens"},
		{"create the Certificate of a Route", createCertificate(ownedCertificate("of-route", route)), ""},
		{"create the Certificate of a DomainMapping", createCertificate(ownedCertificate("of-mapping", mapping)), ""},
		{"create a Certificate without owner", createCertificate(ownedCertificate("mine")), "knative-apiserver-owned"},
		{"create the Certificate of a Channel", createCertificate(ownedCertificate("of-channel", channel)), "knative-apiserver-owned"},
		{"create a Certificate of another kind", createCertificate(ownedCertificate("other", foreign)), "knative-apiserver-owned"},
		{"update the Certificate of a Route", updateCertificate("routes", route), ""},
		{"update the Certificate of a tenant", updateCertificate("tenants"), "knative-apiserver-owned"},
		{"acquire the Certificate of a tenant", updateCertificate("tenants", route), "knative-apiserver-owned"},
		{"release the Certificate of a Route", updateCertificate("routes"), "knative-apiserver-owned"},
		{"delete the Certificate of a DomainMapping", func() error { return certificates.Delete(ctx, "deleted", metav1.DeleteOptions{}) }, ""},
		{"delete the Certificate of a tenant", func() error { return certificates.Delete(ctx, "tenants", metav1.DeleteOptions{}) }, "knative-apiserver-owned"},
	} {
		t.Run(test.name, func(t *testing.T) {
			err := test.do()
			switch {
			case test.refusing == "" && err != nil:
				t.Error(err)
			case test.refusing != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "ValidatingAdmissionPolicy '"+test.refusing+"'")):
				t.Errorf("the host answers %v, want a rejection by policy %s", err, test.refusing)
			}
		})
	}
	if _, err := host.Host.CoreV1().Pods(ns).Get(ctx, "real", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the refused Pod: %v", err)
	}

	// The policies apply to the server only.
	if _, err := host.Host.AppsV1().Deployments(ns).Patch(ctx, "tenants", types.MergePatchType, []byte(touch), metav1.PatchOptions{}); err != nil {
		t.Errorf("another user may not write the Deployment of a tenant: %v", err)
	}
}

// TestOwnPoliciesTypes checks that the host reports no type errors in the expressions of the policies.
func TestOwnPoliciesTypes(t *testing.T) {
	t.Parallel()
	for _, name := range ownPolicies {
		harness.Eventually(t, "policy "+name+" is checked", func() error {
			policy, err := host.Host.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if policy.Status.TypeChecking == nil {
				return errors.New("its types have not been checked")
			}
			for _, warning := range policy.Status.TypeChecking.ExpressionWarnings {
				t.Errorf("policy %s: %s: %s", name, warning.FieldRef, warning.Warning)
			}
			return nil
		})
	}
}

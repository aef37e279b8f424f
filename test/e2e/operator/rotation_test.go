package operator

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/retry"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
	"github.com/knative-apiserver/knative-apiserver/test/harness"
)

const (
	authoritySecret = "knative-apiserver-ca"
	// sinceAnnotation is the start time of the current step of a rotation.
	sinceAnnotation = "knative-apiserver/rotating-since"
	// stepTime is the duration of each step in this test, with load; the server would use two minutes.
	stepTime = 8 * time.Second
)

// TestTwoRotations replaces the authority twice as docs/operations.md describes: no call, request or event fails.
func TestTwoRotations(t *testing.T) {
	s := setUp(t)
	l := startLoad(t, s, true)
	for round := range 2 {
		former := signer(t)
		annotate(t, certs.RotateAnnotation, fmt.Sprintf("%s %d", time.Now().Format(time.RFC3339Nano), round))
		for _, s := range []step{{"the next authority is trusted", 2, true}, {"it signs", 2, false}, {"it is trusted alone", 1, false}} {
			s.await(t)
			pass(t, stepTime)
			if s.trusted > 1 {
				annotate(t, sinceAnnotation, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339Nano))
			}
		}
		if bytes.Equal(former, signer(t)) {
			t.Fatal("the authority is the former one")
		}
	}
	l.stop(t)
	l.requests.mustNotHaveFailed(t)
	l.events.mustNotHaveFailed(t)
	l.api.mustNotHaveFailed(t)
	awaitWhole(t)
}

// annotate sets an annotation of the authority's Secret.
func annotate(t *testing.T, name, value string) {
	t.Helper()
	secrets := node.Host.CoreV1().Secrets(harness.SystemNamespace)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		secret, err := secrets.Get(t.Context(), authoritySecret, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if secret.Annotations == nil {
			secret.Annotations = map[string]string{}
		}
		secret.Annotations[name] = value
		_, err = secrets.Update(t.Context(), secret, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// step is one step of a rotation, identified by the content of the Secret.
type step struct {
	what string
	// trusted is the number of authorities, next is true if one of them does not sign yet.
	trusted int
	next    bool
}

// await waits until the Secret is at the step, and until the host verifies the server by the Secret.
func (s step) await(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, s.what, func(ctx context.Context) error {
		secret, err := authority(ctx)
		if err != nil {
			return err
		}
		bundle := secret.Data["ca.crt"]
		if trusted := bytes.Count(bundle, []byte("BEGIN CERTIFICATE")); trusted != s.trusted || (len(secret.Data["next.crt"]) > 0) != s.next {
			return fmt.Errorf("%d authorities are trusted, and there is a next one: %v", trusted, len(secret.Data["next.crt"]) > 0)
		}
		for _, group := range []string{"serving", "eventing", "messaging"} {
			service, err := node.Admin.Dynamic.Resource(apiServices).Get(ctx, "v1."+group+".knative.dev", metav1.GetOptions{})
			if err != nil {
				return err
			}
			text, _, _ := unstructured.NestedString(service.Object, "spec", "caBundle")
			if current, err := base64.StdEncoding.DecodeString(text); err != nil || !bytes.Equal(current, bundle) {
				return fmt.Errorf("the caBundle of %s is another one", service.GetName())
			}
		}
		return nil
	})
}

var apiServices = schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}

func authority(ctx context.Context) (*corev1.Secret, error) {
	return node.Host.CoreV1().Secrets(harness.SystemNamespace).Get(ctx, authoritySecret, metav1.GetOptions{})
}

// signer returns the certificate of the signing authority.
func signer(t *testing.T) []byte {
	t.Helper()
	secret, err := authority(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return secret.Data[corev1.TLSCertKey]
}

package harness

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
)

// AuthoritySecret has the authority of the server, HostAuthoritySecret the authority of public host names.
const (
	AuthoritySecret     = "knative-apiserver-ca"
	HostAuthoritySecret = certs.HostAuthorityName
)

const (
	// sinceAnnotation is the start time of the current step of a rotation.
	sinceAnnotation = "knative-apiserver/rotating-since"
	// stepTime is the duration of each step of Rotate, with load; the server would use minutes or days. stepLimit bounds the time until it begins.
	stepTime, stepLimit = 8 * time.Second, time.Minute
)

// rotationSteps are the steps of a rotation, by the number of trusted authorities, and whether one of them does not sign yet.
var rotationSteps = []struct {
	what    string
	trusted int
	next    bool
}{{"the next authority is trusted", 2, true}, {"it signs", 2, false}, {"only the new authority is trusted", 1, false}}

// Rotate replaces the authority in a Secret of the server as docs/operations.md describes, in short steps. Each step begins when inUse
// returns nil for the Secret; inUse may be nil.
func (n *Node) Rotate(t testing.TB, name string, inUse func(ctx context.Context, secret *corev1.Secret) error) {
	t.Helper()
	secrets := n.Host.CoreV1().Secrets(SystemNamespace)
	annotate := func(annotation, value string) *corev1.Secret {
		return Edit(t, secrets, name, func(secret *corev1.Secret) { metav1.SetMetaDataAnnotation(&secret.ObjectMeta, annotation, value) })
	}
	former := annotate(certs.RotateAnnotation, time.Now().Format(time.RFC3339Nano)).Data[corev1.TLSCertKey]
	var current *corev1.Secret
	for _, step := range rotationSteps {
		ctx, cancel := context.WithTimeout(t.Context(), stepLimit)
		err := Poll(ctx, func() (err error) {
			if current, err = secrets.Get(ctx, name, metav1.GetOptions{}); err != nil {
				return err
			}
			trusted, next := bytes.Count(current.Data["ca.crt"], []byte("BEGIN CERTIFICATE")), len(current.Data["next.crt"]) > 0
			if trusted != step.trusted || next != step.next {
				return fmt.Errorf("%d authorities are trusted, next authority exists: %t", trusted, next)
			}
			if inUse == nil {
				return nil
			}
			return inUse(ctx, current)
		})
		cancel()
		if err != nil {
			t.Fatalf("rotate %s: wait until %s: %v", name, step.what, err)
		}
		select {
		case <-time.After(stepTime):
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		}
		if step.trusted > 1 {
			annotate(sinceAnnotation, time.Now().Add(-7*24*time.Hour).UTC().Format(time.RFC3339Nano))
		}
	}
	if bytes.Equal(former, current.Data[corev1.TLSCertKey]) {
		t.Fatalf("rotate %s: the authority is the former one", name)
	}
}

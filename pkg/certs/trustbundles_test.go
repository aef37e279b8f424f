package certs

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/klog/v2"
)

// trustBundle returns a ConfigMap with the label of trust bundles and pairs of keys and values.
func trustBundle(name string, pairs ...string) *corev1.ConfigMap {
	c := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{TrustBundleLabelKey: "true"}},
		Data:       map[string]string{},
	}
	for i := 0; i < len(pairs); i += 2 {
		c.Data[pairs[i]] = pairs[i+1]
	}
	return c
}

// TestTrustBundles checks that the certificates of all keys of all labeled ConfigMaps of the namespace are trusted together, that an
// invalid or too large bundle is reported once and ignored, and that changes take effect.
func TestTrustBundles(t *testing.T) {
	var pems []string
	for i := range 4 {
		a, err := newAuthority(fmt.Sprintf("authority-%d", i), time.Hour, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pems = append(pems, string(a.certPEM))
	}
	synctest.Test(t, func(t *testing.T) {
		other, unlabeled := trustBundle("other", "ca.crt", pems[3]), trustBundle("unlabeled", "ca.crt", pems[3])
		other.Namespace, unlabeled.Labels = "other", nil
		binary := trustBundle("c")
		binary.BinaryData = map[string][]byte{"ca.pem": []byte(pems[2])}
		client := fake.NewClientset(trustBundle("a", "x", pems[0], "y", pems[1]), trustBundle("b", "ca.crt", "garbage"), binary, other, unlabeled)
		var bundles, reports []string
		err := WatchTrustBundles(t.Context(), TrustBundleOptions{
			Client: client, Namespace: namespace, Logger: klog.Background(),
			Changed: func(bundle []byte) { bundles = append(bundles, string(bytes.Clone(bundle))) },
			Report: func(configMap string, uid types.UID, err error) {
				reports = append(reports, fmt.Sprintf("%s %s: %v", configMap, uid, err))
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		expect := func(what string, wantBundles, wantReports []string) {
			t.Helper()
			synctest.Wait()
			if diff := cmp.Diff(wantBundles, bundles); diff != "" {
				t.Errorf("%s: bundles (-want +got):\n%s", what, diff)
			}
			if diff := cmp.Diff(wantReports, reports); diff != "" {
				t.Errorf("%s: reports (-want +got):\n%s", what, diff)
			}
			bundles, reports = nil, nil
		}
		const bad = "key 'ca.crt' must have certificates in PEM: data does not contain any valid RSA or ECDSA certificates"
		expect("at the start", []string{pems[0] + pems[1] + pems[2]}, []string{"b uid-b: " + bad})

		configMaps := client.CoreV1().ConfigMaps(namespace)
		apply := func(c *corev1.ConfigMap) {
			t.Helper()
			if _, err := configMaps.Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		apply(trustBundle("b", "ca.crt", "other garbage"))
		expect("with the same fault", nil, nil)
		apply(trustBundle("b", "ca.crt", pems[3]))
		expect("when it is valid", []string{pems[0] + pems[1] + pems[3] + pems[2]}, []string{"b uid-b: <nil>"})
		apply(trustBundle("b", "ca.crt", strings.Repeat(pems[3], maxTrustBundles/len(pems[3]))))
		expect("when it is too large", []string{pems[0] + pems[1] + pems[2]},
			[]string{"b uid-b: trust bundles must have at most 1048576 bytes of certificates together"})
		for _, name := range []string{"a", "b"} {
			if err := configMaps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		// Without a, b fits within the limit, but c does not.
		if last := bundles[len(bundles)-1]; last != pems[2] {
			t.Errorf("%d certificates are trusted at last, want one", strings.Count(last, "BEGIN"))
		}
		if last := reports[len(reports)-1]; last != "c uid-c: <nil>" {
			t.Errorf("the last report is %q", last)
		}
	})
}

package certs

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/util/cert"
)

// signerOf returns the PEM of the current signer in the Secret.
func signerOf(t *testing.T, client *fake.Clientset) string {
	t.Helper()
	return string(readSecret(t, client).Data["tls.crt"])
}

// trustedBy returns the number of trusted authorities in the Secret.
func trustedBy(t *testing.T, client *fake.Clientset) int {
	t.Helper()
	bundle, err := cert.ParseCertsPEM(readSecret(t, client).Data["ca.crt"])
	if err != nil {
		t.Fatal(err)
	}
	return len(bundle)
}

func TestTwoRotationsFailNoHandshake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		services := newAPIServices(apiService("v1.serving.knative.dev", nil))
		leader, _ := start(t, client, nil)
		runBundles(t, leader, services)
		follower, _ := start(t, client, func(o *Options) { o.Leading = func() bool { return false } })
		bundle := func() []byte { return caBundle(t, services, "v1.serving.knative.dev") }
		synctest.Wait()

		signers := map[string]bool{signerOf(t, client): true}
		for _, value := range []string{"first", "second"} {
			old := leader.Bundle()
			askForRotation(t, client, value)
			for second := range 30 {
				meet(t, leader, follower)
				for _, m := range []*Manager{leader, follower} {
					if err := callAPI(t, m, bundle()); err != nil {
						t.Fatalf("%s rotation, %d s: %v", value, second, err)
					}
				}
				if n := trustedBy(t, client); n > 2 {
					t.Fatalf("%d authorities are trusted", n)
				}
				pass(time.Second)
			}
			signers[signerOf(t, client)] = true
			for _, m := range []*Manager{leader, follower} {
				if err := callAPI(t, m, old); err == nil {
					t.Errorf("after the %s rotation a certificate of the old authority is shown", value)
				}
			}
			if !bytes.Equal(bundle(), leader.Bundle()) || trustedBy(t, client) != 1 {
				t.Errorf("after the %s rotation the old authority is still trusted", value)
			}
		}
		if len(signers) != 3 {
			t.Errorf("two rotations had %d signers, want 3", len(signers))
		}
		before := signerOf(t, client)
		pass(time.Hour)
		if signerOf(t, client) != before {
			t.Error("an unrequested rotation took place")
		}
	})
}

func TestAuthorityRotatesAfterTwoThirds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		m, _ := start(t, client, func(o *Options) { o.Validity, o.LeafValidity = 30*24*time.Hour, 24*time.Hour })
		first := signerOf(t, client)
		pass(20*24*time.Hour - time.Minute)
		if signerOf(t, client) != first || trustedBy(t, client) != 1 {
			t.Error("the authority was replaced early")
		}
		pass(3 * time.Minute)
		if signerOf(t, client) == first || trustedBy(t, client) != 1 {
			t.Error("the authority was not replaced after two thirds of its validity")
		}
		meet(t, m)
	})
}

// A replica stops after every step of a rotation, and another one continues.
func TestRotationSurvivesItsLeader(t *testing.T) {
	for stopAfter := 0; stopAfter < 27; stopAfter += 3 {
		t.Run(fmt.Sprint(stopAfter, " s"), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client := newHost()
				first, stop := start(t, client, nil)
				var leads atomic.Bool
				second, _ := start(t, client, func(o *Options) { o.Leading = leads.Load })
				old := signerOf(t, client)
				askForRotation(t, client, "now")
				pass(time.Duration(stopAfter) * time.Second)
				meet(t, first, second)
				stop()
				pass(time.Minute)
				leads.Store(true)
				third, _ := start(t, client, nil)
				for range 30 {
					meet(t, second, third)
					pass(time.Second)
				}
				if signerOf(t, client) == old || trustedBy(t, client) != 1 {
					t.Error("the rotation was not ended")
				}
				if readSecret(t, client).Data["next.key"] != nil {
					t.Error("the key of a next authority is left over")
				}
			})
		})
	}
}

func TestTwoLeadersMakeOneRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		one, _ := start(t, client, nil)
		other, _ := start(t, client, nil)
		askForRotation(t, client, "now")
		synctest.Wait()
		next := string(readSecret(t, client).Data["next.crt"])
		for range 30 {
			meet(t, one, other)
			if n := trustedBy(t, client); n > 2 {
				t.Fatalf("%d authorities are trusted", n)
			}
			pass(time.Second)
		}
		if next == "" || signerOf(t, client) != next {
			t.Error("the authority that was introduced is not the one that signs")
		}
	})
}

func TestOnlyTheLeaderRotates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		start(t, client, func(o *Options) { o.Leading = func() bool { return false } })
		before := signerOf(t, client)
		askForRotation(t, client, "now")
		pass(time.Minute)
		if signerOf(t, client) != before || trustedBy(t, client) != 1 {
			t.Error("a follower rotated the authority")
		}
	})
}

func TestExpiredAuthorityIsReplacedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		_, stop := start(t, client, nil)
		old := signerOf(t, client)
		stop()
		pass(400 * 24 * time.Hour)
		m, _ := start(t, client, nil)
		pass(time.Second)
		if signerOf(t, client) == old || trustedBy(t, client) != 1 {
			t.Error("the expired authority is still there")
		}
		meet(t, m)
		if err := callAPI(t, m, m.Bundle()); err != nil {
			t.Error(err)
		}
	})
}

func TestSecretThatIsDeletedIsRestored(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		m, _ := start(t, client, nil)
		before := readSecret(t, client)
		if err := client.CoreV1().Secrets(namespace).Delete(t.Context(), secretName, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if after := readSecret(t, client); !bytes.Equal(after.Data["tls.key"], before.Data["tls.key"]) {
			t.Error("the authority is another one")
		}
		meet(t, m)
	})
}

func TestEmptySecretIsFilledIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		empty := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: secretName, Namespace: namespace,
			Labels: map[string]string{"team": "a"}, Annotations: map[string]string{RotateAnnotation: "once"}}}
		if _, err := client.CoreV1().Secrets(namespace).Create(t.Context(), empty, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		m, _ := start(t, client, nil)
		filled := readSecret(t, client)
		if filled.Labels["team"] != "a" {
			t.Error("a label is lost")
		}
		pass(time.Minute)
		if !bytes.Equal(readSecret(t, client).Data["tls.crt"], filled.Data["tls.crt"]) {
			t.Error("the new authority was rotated by an earlier request")
		}
		meet(t, m)
	})
}

func TestDamagedSecretKeepsLastKnownState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		m, _ := start(t, client, nil)
		before := m.Bundle()
		good := readSecret(t, client)
		updateSecret(t, client, func(s *corev1.Secret) { s.Data["tls.key"] = []byte("nonsense") })
		pass(time.Minute)
		if !bytes.Equal(m.Bundle(), before) {
			t.Error("the damaged Secret was believed")
		}
		meet(t, m)
		updateSecret(t, client, func(s *corev1.Secret) { s.Data = good.Data })
		askForRotation(t, client, "now")
		pass(time.Minute)
		if bytes.Equal(m.Bundle(), before) {
			t.Error("the repaired Secret was not read")
		}
	})
}

func TestReadStateRefuses(t *testing.T) {
	now := time.Now()
	good, err := rotation{name: "ca", validity: time.Hour}.newState(now)
	if err != nil {
		t.Fatal(err)
	}
	key, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	noAuthority, err := good.signer.issue(names{dns: []string{"leaf"}, usages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}, time.Hour, key, now)
	if err != nil {
		t.Fatal(err)
	}
	other, err := newAuthority("ca", time.Hour, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(map[string][]byte){
		"certificate without key":   func(d map[string][]byte) { delete(d, "tls.key") },
		"key of another":            func(d map[string][]byte) { d["tls.key"] = other.keyPEM },
		"no authority":              func(d map[string][]byte) { d["tls.crt"], d["tls.key"] = noAuthority.certPEM, noAuthority.keyPEM },
		"next without key":          func(d map[string][]byte) { d["next.crt"] = other.certPEM },
		"bundle of something else":  func(d map[string][]byte) { d["ca.crt"] = []byte("nonsense") },
		"bundle with damaged block": func(d map[string][]byte) { d["ca.crt"] = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE"}) },
	} {
		secret := good.write(&corev1.Secret{})
		edit(secret.Data)
		if _, err := readState(secret); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

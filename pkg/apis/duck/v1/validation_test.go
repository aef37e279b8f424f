package v1

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// fault is what a test expects of one error. Detail is a fragment of the message.
type fault struct {
	Type   field.ErrorType
	Field  string
	Detail string
}

// expectFaults compares errors with what is wanted, in order.
func expectFaults(t *testing.T, got field.ErrorList, want ...fault) {
	t.Helper()
	var seen []fault
	for i, err := range got {
		f := fault{Type: err.Type, Field: err.Field, Detail: err.ErrorBody()}
		if i < len(want) && strings.Contains(f.Detail, want[i].Detail) {
			f.Detail = want[i].Detail
		}
		seen = append(seen, f)
	}
	if diff := cmp.Diff(want, seen); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
}

// newCertificate returns a self-signed certificate as PEM.
func newCertificate(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

// newKey returns a private key as PEM.
func newKey(t *testing.T) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
}

package hostcerts

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"maps"
	"math/big"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/knative-apiserver/knative-apiserver/pkg/certs"
)

// fakeStore is the Store of a gateway.
type fakeStore struct {
	mu      sync.Mutex
	held    map[string]*tls.Certificate
	updates int
	// http and tls are the challenges to answer.
	http map[string]string
	tls  map[string]*tls.Certificate
	// tickets are the keys of session tickets.
	tickets [][32]byte
}

func (f *fakeStore) Update(certificates map[string]*tls.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.held == nil {
		f.held = map[string]*tls.Certificate{}
	}
	f.updates++
	for name, certificate := range certificates {
		if certificate == nil {
			delete(f.held, name)
		} else {
			f.held[name] = certificate
		}
	}
}

func (f *fakeStore) SetHTTPChallenge(host, token, response string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.http == nil {
		f.http = map[string]string{}
	}
	if delete(f.http, host); token != "" {
		f.http[host] = token + " " + response
	}
}

func (f *fakeStore) SetTLSChallenge(host string, certificate *tls.Certificate) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.tls == nil {
		f.tls = map[string]*tls.Certificate{}
	}
	if delete(f.tls, host); certificate != nil {
		f.tls[host] = certificate
	}
}

func (f *fakeStore) SetTicketKeys(keys [][32]byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.tickets = keys
}

func (f *fakeStore) ticketKeys() [][32]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.tickets
}

func (f *fakeStore) get(host string) *tls.Certificate {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.held[host]
}

func (f *fakeStore) hosts() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.held))
}

// fakeSecrets are the Secrets of a cluster.
type fakeSecrets struct {
	mu      sync.Mutex
	all     map[string]*corev1.Secret
	version int
	fault   error
}

func (f *fakeSecrets) read(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fault != nil {
		return nil, f.fault
	}
	if s := f.all[key.String()]; s != nil {
		return s, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, key.Name)
}

// put replaces a Secret of the namespace default; nil deletes it.
func (f *fakeSecrets) put(name string, s *corev1.Secret) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]*corev1.Secret{}
	}
	if delete(f.all, "default/"+name); s != nil {
		f.version++
		s.ResourceVersion = strconv.Itoa(f.version)
		f.all["default/"+name] = s
	}
}

// leafValidity is the validity of issued certificates, secretValidity the validity of certificates in Secrets.
const leafValidity, secretValidity = 9 * time.Hour, 10 * time.Hour

// fixture is a running Provisioner.
type fixture struct {
	*Provisioner
	authority *certs.HostAuthority
	secrets   *fakeSecrets
	store     *fakeStore
	acme      *fakeACME

	mu       sync.Mutex
	notified []Owner
}

func newFixture(t *testing.T, edit ...func(*certs.HostOptions)) *fixture {
	t.Helper()
	options := certs.HostOptions{Dir: t.TempDir(), LeafValidity: leafValidity, Logger: klog.Background()}
	for _, f := range edit {
		f(&options)
	}
	f := &fixture{secrets: &fakeSecrets{}, store: &fakeStore{}, acme: newFakeACME()}
	f.authority = certs.NewHostAuthority(options)
	f.Provisioner = NewProvisioner(Options{Authority: f.authority, ReadSecret: f.secrets.read, ACME: f.acme, Store: f.store, Clock: clock.RealClock{}, Logger: klog.Background()})
	f.Subscribe(func(owner Owner) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.notified = append(f.notified, owner)
	})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { f.authority.Run(ctx) })
	running.Go(func() { f.Run(ctx) })
	t.Cleanup(func() { cancel(); running.Wait() })
	return f
}

// notifications returns the owners notified since the last call.
func (f *fixture) notifications() []Owner {
	f.mu.Lock()
	defer f.mu.Unlock()
	defer func() { f.notified = nil }()
	return f.notified
}

func owner(kind, name string) Owner {
	return Owner{Kind: kind, Key: types.NamespacedName{Namespace: "default", Name: name}}
}

// issuer signs the certificates of Secrets.
type issuer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newIssuer(t *testing.T) *issuer {
	t.Helper()
	i := &issuer{key: ecKey(t)}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(1000 * time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, i.key.Public(), i.key)
	if err != nil {
		t.Fatal(err)
	}
	if i.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return i
}

func ecKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t *testing.T, bits int) *rsa.PrivateKey {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// certificate returns a Secret with a certificate.
func (i *issuer) certificate(t *testing.T, host string, valid time.Duration, key, public any) *corev1.Secret {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{host}, NotBefore: time.Now().Add(min(valid, 0) - time.Hour), NotAfter: time.Now().Add(valid),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, i.cert, public, i.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default"}, Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
			"tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}),
		},
	}
}

// valid returns a Secret with a new certificate for a host name.
func (i *issuer) valid(t *testing.T, host string) *corev1.Secret {
	t.Helper()
	key := ecKey(t)
	return i.certificate(t, host, secretValidity, key, key.Public())
}

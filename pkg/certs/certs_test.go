package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
)

const (
	namespace  = "knative-system"
	secretName = "knative-apiserver-ca"
	apiHost    = "knative-apiserver.knative-system.svc"
)

// newHost returns a fake host cluster that detects conflicting updates, as a real API server does.
func newHost() *fake.Clientset {
	client := fake.NewClientset()
	var mu sync.Mutex
	version := 0
	client.PrependReactor("*", "secrets", func(action clienttesting.Action) (bool, runtime.Object, error) {
		mu.Lock()
		defer mu.Unlock()
		tracker, gvr := client.Tracker(), action.GetResource()
		stamp := func(o runtime.Object) *corev1.Secret {
			version++
			secret := o.(*corev1.Secret).DeepCopy()
			secret.ResourceVersion = strconv.Itoa(version)
			return secret
		}
		switch action := action.(type) {
		case clienttesting.UpdateActionImpl:
			secret := action.GetObject().(*corev1.Secret)
			stored, err := tracker.Get(gvr, secret.Namespace, secret.Name)
			if err != nil {
				return true, nil, err
			}
			if stored.(*corev1.Secret).ResourceVersion != secret.ResourceVersion {
				return true, nil, apierrors.NewConflict(gvr.GroupResource(), secret.Name, errors.New("it has changed"))
			}
			secret = stamp(secret)
			return true, secret, tracker.Update(gvr, secret, secret.Namespace)
		case clienttesting.CreateActionImpl:
			secret := stamp(action.GetObject())
			return true, secret, tracker.Create(gvr, secret, secret.Namespace)
		default:
			return false, nil, nil
		}
	})
	return client
}

// start returns a Manager that has certificates, and a function that stops it. edit modifies the options.
func start(t *testing.T, client *fake.Clientset, edit func(*Options)) (*Manager, context.CancelFunc) {
	t.Helper()
	options := Options{Client: client, Namespace: namespace, ClusterDomain: "cluster.local", Settle: 10 * time.Second, Logger: klog.Background()}
	if edit != nil {
		edit(&options)
	}
	m, err := New(options)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := m.Start(ctx); err != nil {
		t.Fatal(err)
	}
	stop := func() { cancel(); m.Wait() }
	t.Cleanup(stop)
	return m, stop
}

// pass advances the clock and waits until all due timers have fired.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func readSecret(t *testing.T, client *fake.Clientset) *corev1.Secret {
	t.Helper()
	secret, err := client.CoreV1().Secrets(namespace).Get(t.Context(), secretName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return secret
}

func updateSecret(t *testing.T, client *fake.Clientset, edit func(*corev1.Secret)) {
	t.Helper()
	secret := readSecret(t, client)
	edit(secret)
	if _, err := client.CoreV1().Secrets(namespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func askForRotation(t *testing.T, client *fake.Clientset, value string) {
	t.Helper()
	updateSecret(t, client, func(s *corev1.Secret) { metav1.SetMetaDataAnnotation(&s.ObjectMeta, RotateAnnotation, value) })
}

// handshake connects two ends and sends a byte from server to client, so that both have accepted each other.
func handshake(server, client *tls.Config) error {
	serverSide, clientSide := net.Pipe()
	served := make(chan error, 1)
	go func() {
		defer serverSide.Close()
		_, err := tls.Server(serverSide, server).Write([]byte{1})
		served <- err
	}()
	_, err := tls.Client(clientSide, client).Read(make([]byte, 1))
	clientSide.Close()
	return errors.Join(err, <-served)
}

// servingConfig returns the TLS configuration of an API server with the current certificate.
func servingConfig(t *testing.T, m *Manager) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(m.ServingCertificate().CurrentCertKeyContent())
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}}
}

// callAPI connects like a kube-aggregator that trusts bundle.
func callAPI(t *testing.T, m *Manager, bundle []byte) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(bundle)
	return handshake(servingConfig(t, m), &tls.Config{RootCAs: roots, ServerName: apiHost})
}

// meet fails the test unless all managers accept each other.
func meet(t *testing.T, managers ...*Manager) {
	t.Helper()
	for i, server := range managers {
		for j, client := range managers {
			if err := handshake(server.PeerTLS(), client.PeerTLS()); err != nil {
				t.Fatalf("%v: replica %d did not connect to replica %d: %v", time.Now(), j, i, err)
			}
		}
	}
}

func TestNewNeedsClientNamespaceAndDomain(t *testing.T) {
	for _, options := range []Options{
		{Namespace: namespace, ClusterDomain: "cluster.local"},
		{Client: newHost(), ClusterDomain: "cluster.local"},
		{Client: newHost(), Namespace: namespace},
	} {
		if _, err := New(options); err == nil {
			t.Errorf("New(%+v) succeeded", options)
		}
	}
}

func TestReplicasThatStartTogetherShareOneAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		managers := make([]*Manager, 3)
		var starting sync.WaitGroup
		ctx, cancel := context.WithCancel(t.Context())
		for i := range managers {
			m, err := New(Options{Client: client, Namespace: namespace, ClusterDomain: "cluster.local", Leading: func() bool { return i == 0 }})
			if err != nil {
				t.Fatal(err)
			}
			managers[i] = m
			starting.Go(func() {
				if err := m.Start(ctx); err != nil {
					t.Errorf("replica %d: %v", i, err)
				}
			})
		}
		starting.Wait()
		synctest.Wait()
		meet(t, managers...)
		for i, m := range managers {
			if !bytes.Equal(m.Bundle(), readSecret(t, client).Data["ca.crt"]) {
				t.Errorf("replica %d does not trust the bundle of the Secret", i)
			}
			if err := callAPI(t, m, managers[0].Bundle()); err != nil {
				t.Errorf("calling the API of replica %d: %v", i, err)
			}
		}
		cancel()
		for _, m := range managers {
			m.Wait()
		}
	})
}

func TestStartWaitsForTheHostCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := newHost()
		reachable := time.Now().Add(time.Minute)
		client.PrependReactor("*", "secrets", func(clienttesting.Action) (bool, runtime.Object, error) {
			if time.Now().Before(reachable) {
				return true, nil, errors.New("connection refused")
			}
			return false, nil, nil
		})
		short, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		m, err := New(Options{Client: client, Namespace: namespace, ClusterDomain: "cluster.local"})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Start(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Start without host cluster returned %v, want the error of its context", err)
		}
		m.Wait()

		start(t, client, nil)
		if now := time.Now(); now.Before(reachable) {
			t.Errorf("started at %v, before the host cluster existed", now)
		}
	})
}

type listener struct{ calls atomic.Int32 }

func (l *listener) Enqueue() { l.calls.Add(1) }

func TestCertificatesAreRenewedAfterTwoThirds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), func(o *Options) { o.LeafValidity = 30 * time.Hour })
		serving := m.ServingCertificate()
		var notified listener
		serving.AddListener(&notified)
		cert, key := serving.CurrentCertKeyContent()
		peer, err := m.PeerTLS().GetCertificate(nil)
		if err != nil {
			t.Fatal(err)
		}

		pass(20*time.Hour - time.Minute)
		if now, _ := serving.CurrentCertKeyContent(); !bytes.Equal(now, cert) || notified.calls.Load() != 0 {
			t.Errorf("the certificate was renewed early, with %d notifications", notified.calls.Load())
		}
		pass(2 * time.Minute)
		newCert, newKey := serving.CurrentCertKeyContent()
		if bytes.Equal(newCert, cert) || bytes.Equal(newKey, key) {
			t.Error("certificate or key is the same after two thirds of its validity")
		}
		if newPeer, err := m.PeerTLS().GetClientCertificate(nil); err != nil || newPeer == peer {
			t.Errorf("the certificate for peers is the same after two thirds of its validity (%v)", err)
		}
		if notified.calls.Load() != 1 {
			t.Errorf("the listener was notified %d times, want once", notified.calls.Load())
		}
		pass(29 * time.Hour)
		meet(t, m)
		if err := callAPI(t, m, m.Bundle()); err != nil {
			t.Error(err)
		}
	})
}

func TestPeersRefuseStrangers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), nil)
		stranger, _ := start(t, newHost(), nil)
		serving := servingConfig(t, m)

		for name, test := range map[string]struct{ server, client *tls.Config }{
			"client of another authority": {m.PeerTLS(), stranger.PeerTLS()},
			"client without certificate":  {m.PeerTLS(), &tls.Config{InsecureSkipVerify: true}},
			"client with the API's certificate": {m.PeerTLS(),
				&tls.Config{InsecureSkipVerify: true, Certificates: serving.Certificates}},
			"server with the API's certificate": {serving, m.PeerTLS()},
		} {
			if err := handshake(test.server, test.client); err == nil {
				t.Errorf("%s was accepted", name)
			}
		}
		meet(t, m)
	})
}

func TestNothingIsAcceptedBeforeStart(t *testing.T) {
	m, err := New(Options{Client: newHost(), Namespace: namespace, ClusterDomain: "cluster.local"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.PeerTLS().GetCertificate(nil); !errors.Is(err, ErrNotIssued) {
		t.Errorf("GetCertificate returned %v, want %v", err, ErrNotIssued)
	}
	if err := m.PeerTLS().VerifyConnection(tls.ConnectionState{}); !errors.Is(err, ErrNotIssued) {
		t.Errorf("VerifyConnection returned %v, want %v", err, ErrNotIssued)
	}
	if m.Bundle() != nil {
		t.Error("a bundle exists")
	}
}

func TestNamesOfCertificates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _ := start(t, newHost(), func(o *Options) {
			o.ClusterDomain = "corp.example"
			o.PodName, o.PeerService, o.IPs = "knative-apiserver-1", "knative-apiserver-peers", []net.IP{nil, net.IPv4(10, 1, 2, 3)}
		})
		held := m.current.Load()
		for _, name := range []string{apiHost, apiHost + ".corp.example", "localhost"} {
			if err := held.serving.tls.Leaf.VerifyHostname(name); err != nil {
				t.Error(err)
			}
		}
		const pod = "knative-apiserver-1.knative-apiserver-peers.knative-system.svc"
		for _, name := range []string{PeerName, pod, pod + ".corp.example", "10.1.2.3"} {
			if err := held.peer.tls.Leaf.VerifyHostname(name); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestExpiriesAreMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := metrics.NewKubeRegistry()
		begun := time.Now()
		m, _ := start(t, newHost(), func(o *Options) { o.Register = registry.MustRegister })
		writeEtcdFiles(t, m)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		const day = 24 * time.Hour
		want := map[string]float64{}
		for name, validity := range map[string]time.Duration{"ca": 365 * day, "serving": 7 * day, "peer": 7 * day, "etcd_ca": 3650 * day, "etcd": 7 * day} {
			want[name] = float64(begun.Add(validity).Unix())
		}
		got := map[string]float64{}
		for _, family := range families {
			if family.GetName() != "knative_apiserver_certificate_expiration_seconds" {
				continue
			}
			for _, metric := range family.GetMetric() {
				got[metric.GetLabel()[0].GetValue()] = metric.GetGauge().GetValue()
			}
		}
		// Certificates are issued shortly after the start, when informers have synced the Secrets.
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 5)); diff != "" {
			t.Errorf("expiries (-want +got):\n%s", diff)
		}
	})
}

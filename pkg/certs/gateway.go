package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

// gatewayCheck is the interval at which the leader checks the certificate of the gateways.
const gatewayCheck = 5 * time.Second

// KeepGatewayCertificate keeps the certificate of gateways in its Secret current while this replica leads, until ctx is canceled.
// Start must have returned.
func (m *Manager) KeepGatewayCertificate(ctx context.Context) {
	ticker := m.options.Clock.NewTicker(gatewayCheck)
	defer ticker.Stop()
	for {
		if m.options.Leading() {
			if err := m.writeGatewayCertificate(ctx); err != nil && ctx.Err() == nil {
				m.options.Logger.Error(err, "Failed to write certificate of gateways; retrying", "secret", klog.KRef(m.options.Namespace, m.options.GatewaySecretName))
			}
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}

// writeGatewayCertificate writes the Secret if its certificate or its authorities are outdated.
func (m *Manager) writeGatewayCertificate(ctx context.Context) error {
	held, now := m.current.Load(), m.options.Clock.Now()
	secrets := m.options.Client.CoreV1().Secrets(m.options.Namespace)
	secret, err := secrets.Get(ctx, m.options.GatewaySecretName, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	switch {
	case missing:
		secret = &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: m.options.GatewaySecretName, Namespace: m.options.Namespace, Labels: secretLabels()},
			Type:       corev1.SecretTypeTLS,
		}
	case err != nil:
		return fmt.Errorf("read certificate of gateways: %w", err)
	}
	current := isCurrent(secret, held, now)
	if current && bytes.Equal(secret.Data[bundleKey], held.bundle) {
		return nil
	}
	secret = secret.DeepCopy()
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[bundleKey] = held.bundle
	if !current {
		key, err := newKey()
		if err != nil {
			return err
		}
		issued, err := held.signer.issue(names{
			dns:    []string{GatewayName},
			usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		}, m.options.LeafValidity, key, now)
		if err != nil {
			return err
		}
		secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey] = issued.certPEM, issued.keyPEM
	}
	if missing {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("write certificate of gateways: %w", err)
	}
	return nil
}

// isCurrent reports whether a Secret has a certificate of the signer that is not due for renewal.
func isCurrent(secret *corev1.Secret, held *issued, now time.Time) bool {
	pair, err := tls.X509KeyPair(secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return false
	}
	return pair.Leaf.CheckSignatureFrom(held.signer.cert) == nil && pair.Leaf.VerifyHostname(GatewayName) == nil &&
		now.Before(renewal(pair.Leaf.NotBefore.Add(backdating), pair.Leaf.NotAfter))
}

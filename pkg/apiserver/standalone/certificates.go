// Package standalone creates the certificates and the kubeconfig of a server without a host cluster.
package standalone

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Certificates are the paths of PEM files: the authority, the server's certificate and the administrator's certificate.
type Certificates struct {
	CA                      string
	ServingCert, ServingKey string
	ClientCert, ClientKey   string
}

const (
	authorityLifetime   = 10 * 365 * 24 * time.Hour
	certificateLifetime = 365 * 24 * time.Hour
	// renewBefore is the remaining validity at which a certificate is replaced during startup.
	renewBefore = 30 * 24 * time.Hour
)

// EnsureCertificates creates missing or expiring certificates in dir: an authority, a serving certificate for host and
// localhost, and a client certificate with full permissions.
func EnsureCertificates(dir string, host net.IP) (*Certificates, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("create certificate directory: %w", err)
	}
	path := func(name string) string { return filepath.Join(dir, name) }
	c := &Certificates{
		CA:          path("ca.crt"),
		ServingCert: path("serving.crt"), ServingKey: path("serving.key"),
		ClientCert: path("admin.crt"), ClientKey: path("admin.key"),
	}
	authority, err := ensureAuthority(c.CA, path("ca.key"))
	if err != nil {
		return nil, fmt.Errorf("certificate authority in %s: %w", dir, err)
	}
	serving := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "knative-apiserver"},
		DNSNames:    []string{"localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if !host.IsUnspecified() && !host.IsLoopback() {
		serving.IPAddresses = append(serving.IPAddresses, host)
	}
	if err := authority.ensure(c.ServingCert, c.ServingKey, serving); err != nil {
		return nil, fmt.Errorf("serving certificate in %s: %w", dir, err)
	}
	client := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "admin", Organization: []string{user.SystemPrivilegedGroup}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if err := authority.ensure(c.ClientCert, c.ClientKey, client); err != nil {
		return nil, fmt.Errorf("administrator's certificate in %s: %w", dir, err)
	}
	return c, nil
}

// WriteKubeconfig writes a kubeconfig for the administrator at address, and returns its absolute path.
func (c *Certificates) WriteKubeconfig(path, address string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	config := clientcmdapi.NewConfig()
	cluster, admin := clientcmdapi.NewCluster(), clientcmdapi.NewAuthInfo()
	cluster.Server = address
	for file, data := range map[string]*[]byte{
		c.CA:         &cluster.CertificateAuthorityData,
		c.ClientCert: &admin.ClientCertificateData,
		c.ClientKey:  &admin.ClientKeyData,
	} {
		if *data, err = os.ReadFile(file); err != nil {
			return "", fmt.Errorf("write kubeconfig: %w", err)
		}
	}
	const name = "knative-apiserver"
	config.Clusters[name] = cluster
	config.AuthInfos["admin"] = admin
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: "admin", Namespace: "default"}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer
}

func ensureAuthority(certFile, keyFile string) (*authority, error) {
	if certificate, key, err := load(certFile, keyFile); err != nil {
		return nil, err
	} else if certificate != nil && fresh(certificate) {
		return &authority{certificate, key}, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "knative-apiserver-ca"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	a := &authority{certificate: template, key: key}
	if a.certificate, err = a.sign(template, key, authorityLifetime); err != nil {
		return nil, err
	}
	return a, write(a.certificate, key, certFile, keyFile)
}

// ensure creates a certificate from template unless the files contain a usable one of this authority.
func (a *authority) ensure(certFile, keyFile string, template *x509.Certificate) error {
	if certificate, _, err := load(certFile, keyFile); err != nil {
		return err
	} else if certificate != nil && fresh(certificate) && certificate.CheckSignatureFrom(a.certificate) == nil && covers(certificate, template) {
		return nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	certificate, err := a.sign(template, key, certificateLifetime)
	if err != nil {
		return err
	}
	return write(certificate, key, certFile, keyFile)
}

func (a *authority) sign(template *x509.Certificate, key crypto.Signer, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template.SerialNumber = serial
	template.NotBefore = time.Now().Add(-time.Minute)
	template.NotAfter = template.NotBefore.Add(lifetime)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func fresh(c *x509.Certificate) bool { return time.Until(c.NotAfter) > renewBefore }

func covers(c, template *x509.Certificate) bool {
	for _, ip := range template.IPAddresses {
		if c.VerifyHostname(ip.String()) != nil {
			return false
		}
	}
	return true
}

// load reads a certificate and its key. Both are nil if they do not exist.
func load(certFile, keyFile string) (*x509.Certificate, crypto.Signer, error) {
	certificates, err := cert.CertsFromFile(certFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	key, err := keyutil.PrivateKeyFromFile(keyFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, fmt.Errorf("key in %s does not implement crypto.Signer", keyFile)
	}
	return certificates[0], signer, nil
}

// write stores the key before the certificate: a certificate without a key would look complete after a crash.
func write(certificate *x509.Certificate, key crypto.Signer, certFile, keyFile string) error {
	keyPEM, err := keyutil.MarshalPrivateKeyToPEM(key)
	if err != nil {
		return err
	}
	certPEM, err := cert.EncodeCertificates(certificate)
	if err != nil {
		return err
	}
	// A certificate of the previous key must not remain beside the new key.
	if err := os.Remove(certFile); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := keyutil.WriteKey(keyFile, keyPEM); err != nil {
		return err
	}
	return cert.WriteCert(certFile, certPEM)
}

package apiserver

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	authenticatorunion "k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/authorization/path"
	"k8s.io/apiserver/pkg/authorization/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/knative-apiserver/knative-apiserver/pkg/apiserver/standalone"
	"github.com/knative-apiserver/knative-apiserver/pkg/etcd"
)

// StandaloneOptions configure a server without a host cluster: the same server with an embedded etcd and self-signed
// certificates.
type StandaloneOptions struct {
	DataDir    string
	BindHost   net.IP
	SecurePort int
	// ControllersUsers are further users that count as controllers; see identity.Controllers.
	ControllersUsers []string
	// TokenAuthFile is the path of a CSV file of tokens. Empty means that no token is valid.
	TokenAuthFile string
}

// NewStandaloneOptions returns options with default values.
func NewStandaloneOptions() *StandaloneOptions {
	return &StandaloneOptions{DataDir: "knative-apiserver-data", BindHost: net.IPv4(127, 0, 0, 1), SecurePort: 7443}
}

// AddFlags adds the flags to named sections.
func (o *StandaloneOptions) AddFlags(fss *cliflag.NamedFlagSets) {
	generic := fss.FlagSet("generic")
	generic.StringVar(&o.DataDir, "data-dir", o.DataDir, "Directory of all persistent data: objects, certificates, kubeconfig, events and logs.")
	addControllersUserFlag(generic, &o.ControllersUsers)
	fss.FlagSet("authentication").StringVar(&o.TokenAuthFile, "token-auth-file", o.TokenAuthFile,
		"Path of a CSV file of bearer tokens, which is read again when it changes: token, user name, user UID, and optionally the groups in quotes, "+
			"separated by commas. Members of the group "+standalone.InvokersGroup+" may call Services with the annotation serving.knative.dev/invocation: rbac. "+
			"Empty means that no token is valid.")
	secure := fss.FlagSet("secure serving")
	secure.IPVar(&o.BindHost, "bind-address", o.BindHost, "IP address of the HTTPS, gateway and broker ports.")
	secure.IntVar(&o.SecurePort, "secure-port", o.SecurePort, "Port of HTTPS. 0 selects a free port.")
}

// Validate returns all errors of the options.
func (o *StandaloneOptions) Validate() error {
	var errs []error
	if o.DataDir == "" {
		errs = append(errs, errors.New("--data-dir must not be empty"))
	}
	if o.SecurePort < 0 || o.SecurePort > 65535 {
		errs = append(errs, fmt.Errorf("--secure-port %d must be from 0 to 65535", o.SecurePort))
	}
	return errors.Join(errs...)
}

// Kubeconfig returns the path of the administrator's kubeconfig file, which RunServer writes before it starts the components.
func (o *StandaloneOptions) Kubeconfig() string { return filepath.Join(o.DataDir, "kubeconfig") }

// RunServer serves until ctx is canceled, and writes one line to out when it is ready, which names further addresses of the process.
// addresses returns these once the components have started; nil for none.
func (o *StandaloneOptions) RunServer(ctx context.Context, out io.Writer, d Dependencies, addresses func() []string) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(o.BindHost.String(), strconv.Itoa(o.SecurePort)))
	if err != nil {
		return fmt.Errorf("listen on --secure-port %d: %w", o.SecurePort, err)
	}
	defer listener.Close()

	options := NewOptions()
	options.DataDir = o.DataDir
	// etcd locks the data directory, so it starts before other components write there.
	embedded, err := etcd.Start(o.DataDir)
	if err != nil {
		return err
	}
	defer embedded.Stop()
	certificates, err := standalone.EnsureCertificates(filepath.Join(o.DataDir, "pki"), o.BindHost)
	if err != nil {
		return err
	}
	o.adjust(options, certificates, listener)

	config := newConfig(options.scheme, options.codecs, d.Settings)
	config.ClusterDomain = cmp.Or(d.ClusterDomain, defaultClusterDomain)
	config.Memory, config.Reads, config.Writes = d.Memory, d.Reads, d.Writes
	config.DeadLetters = d.DeadLetters
	config.Core = true
	config.Controllers.UserNames = o.ControllersUsers
	options.store(config, embedded, d)
	if err := options.applyTo(config); err != nil {
		return err
	}
	tokens, err := o.authenticate(config, certificates.CA)
	if err != nil {
		return err
	}
	address := "https://" + listener.Addr().String()
	kubeconfig, err := certificates.WriteKubeconfig(o.Kubeconfig(), address)
	if err != nil {
		return err
	}
	server, err := config.New()
	if err != nil {
		return err
	}
	server.tokenReviews, server.accessReviews = &TokenReviews{tokens}, &AccessReviews{config.Generic.Authorization.Authorizer}
	return server.Run(ctx, func(ctx context.Context) error {
		if d.Components != nil {
			if err := d.Components.Start(ctx, server); err != nil {
				return err
			}
		}
		var others string
		if addresses != nil {
			if all := addresses(); len(all) > 0 {
				others = " (" + strings.Join(all, ", ") + ")"
			}
		}
		fmt.Fprintf(out, "knative-apiserver is ready at %s, kubeconfig %s%s\n", address, kubeconfig, others)
		return nil
	})
}

// adjust changes the options of an aggregated server for a server without a host cluster: no delegation of authentication, no
// admission plugins that read host objects, and self-signed certificates.
func (o *StandaloneOptions) adjust(options *Options, certificates *standalone.Certificates, listener net.Listener) {
	r := options.Recommended
	r.CoreAPI, r.Admission, r.Authentication, r.Authorization = nil, nil, nil, nil
	r.Features.EnablePriorityAndFairness = false
	r.SecureServing.BindAddress = o.BindHost
	r.SecureServing.BindPort = listener.Addr().(*net.TCPAddr).Port
	r.SecureServing.Listener = listener
	r.SecureServing.ServerCert.CertKey.CertFile = certificates.ServingCert
	r.SecureServing.ServerCert.CertKey.KeyFile = certificates.ServingKey
}

// healthPaths are accessible without a certificate.
var healthPaths = []string{"/healthz", "/livez", "/readyz"}

// authenticate accepts clients with a certificate of the server's own authority or a token of the file, with full permissions for
// system:masters, and allows anonymous health checks. The tokens are nil without a file.
func (o *StandaloneOptions) authenticate(config *Config, caFile string) (authenticator.Token, error) {
	ca, err := dynamiccertificates.NewDynamicCAContentFromFile("client-ca", caFile)
	if err != nil {
		return nil, fmt.Errorf("load certificate authority: %w", err)
	}
	generic := &config.Generic.Config
	if err := generic.Authentication.ApplyClientCert(ca, generic.SecureServing); err != nil {
		return nil, fmt.Errorf("configure client certificates: %w", err)
	}
	anonymous := &apiserver.AnonymousAuthConfig{Enabled: true}
	for _, p := range healthPaths {
		anonymous.Conditions = append(anonymous.Conditions, apiserver.AnonymousAuthCondition{Path: p})
	}
	delegating, _, err := authenticatorfactory.DelegatingAuthenticatorConfig{
		Anonymous:                          anonymous,
		ClientCertificateCAContentProvider: ca,
	}.New()
	if err != nil {
		return nil, fmt.Errorf("configure authentication: %w", err)
	}
	generic.Authentication.Authenticator = delegating
	var tokens authenticator.Token
	if o.TokenAuthFile != "" {
		if tokens, err = standalone.OpenTokenFile(o.TokenAuthFile); err != nil {
			return nil, err
		}
		generic.Authentication.Authenticator = authenticatorunion.New(bearertoken.New(tokens), delegating)
	}

	healthChecks, err := path.NewAuthorizer(healthPaths)
	if err != nil {
		return nil, err
	}
	generic.Authorization.Authorizer, err = union.New(
		union.NamedAuthorizer{AuthorizerName: "privileged-groups", Authorizer: authorizerfactory.NewPrivilegedGroups(user.SystemPrivilegedGroup)},
		union.NamedAuthorizer{AuthorizerName: "health-checks", Authorizer: healthChecks},
		union.NamedAuthorizer{AuthorizerName: "invokers", Authorizer: authorizer.AuthorizerFunc(standalone.AuthorizeInvokers)},
	)
	return tokens, err
}

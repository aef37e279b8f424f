// Package hosttls decides which public host names of an object are served by HTTPS, and reports it in the condition CertificateProvisioned.
package hosttls

import (
	"context"
	"fmt"
	"maps"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	duckv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/duck/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/certs/hostcerts"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/certmanager"
	"github.com/knative-apiserver/knative-apiserver/pkg/controllers/reconciler"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// Reasons of CertificateProvisioned.
const (
	ReasonTLSNotEnabled = "TLSNotEnabled"
	// ReasonHTTPDowngrade means that a host name without a certificate is served without TLS.
	ReasonHTTPDowngrade              = "HTTPDowngrade"
	ReasonCertificateNotReady        = "CertificateNotReady"
	ReasonCertificateProvisionFailed = "CertificateProvisionFailed"
	// ReasonCertificateExternallyProvided means that the certificate is in a Secret of the user.
	ReasonCertificateExternallyProvided = "CertificateExternallyProvided"
	// ReasonCertificateNotOwned means that the name of a Certificate of cert-manager belongs to another owner.
	ReasonCertificateNotOwned = "CertificateNotOwned"
)

// ReasonHTTPProtocolInvalid is the reason of IngressReady for an annotation about redirects to HTTPS with an unknown value.
const ReasonHTTPProtocolInvalid = "HTTPProtocolInvalid"

// Certificates provides the certificates of public host names.
type Certificates interface {
	// Set replaces the requests of an owner.
	Set(ctx context.Context, owner hostcerts.Owner, requests []hostcerts.Request)
	State(host string) hostcerts.State
	// Subscribe makes changed be called when the State of an owner's host name changes.
	Subscribe(changed func(hostcerts.Owner))
}

// Manager writes Certificates of cert-manager.
type Manager interface {
	// States records the wanted Certificates of an object, and returns their states by host name.
	States(ctx context.Context, o *certmanager.Object, issuer settings.Issuer, wanted []certmanager.Certificate) map[string]certmanager.State
	// Apply writes the wanted Certificates of an object, and deletes its others. It returns the states of the ones that it could not write, by host
	// name, and the errors to retry.
	Apply(ctx context.Context, o *certmanager.Object, issuer settings.Issuer, wanted []certmanager.Certificate) (map[string]certmanager.State, error)
	// Subscribe makes changed be called when the state of an owner's Certificate changes.
	Subscribe(changed func(hostcerts.Owner))
	// Forget ends reports about the Certificates of a deleted object.
	Forget(owner hostcerts.Owner)
}

// Follow calls enqueue with the key of each owner of a kind when the state of its certificates changes. certificates and manager may be nil.
func Follow(kind string, certificates Certificates, manager Manager, enqueue func(types.NamespacedName)) {
	changed := func(owner hostcerts.Owner) {
		if owner.Kind == kind {
			enqueue(owner.Key)
		}
	}
	if certificates != nil {
		certificates.Subscribe(changed)
	}
	if manager != nil {
		manager.Subscribe(changed)
	}
}

// Object is an object with host names.
type Object struct {
	Owner hostcerts.Owner
	// Managed is the owner of Certificates of cert-manager, and ManagedName returns the name of the Certificate of a host name.
	Managed     certmanager.Object
	ManagedName func(host string) string
	Annotations map[string]string
	// Public are the public host names that the object serves. Local is true if it has none by choice.
	Public []string
	Local  bool
	// Secret is the name of the Secret with the certificate of the host names, as the user wrote it. Nil without one.
	Secret *string
}

// Findings are the states of the certificates of an object.
type Findings struct {
	// Fault is the error of an annotation, or nil.
	Fault error

	// disabled is why no certificate is wanted, or empty.
	disabled string
	// hosts are the host names with a wanted certificate, states their states.
	hosts  []string
	states map[string]hostcerts.State
	// secret is true if the certificate is in a Secret of the user.
	secret bool
	// unsupported is true if the certificate class is unknown, or no Secret can have the name of the user's.
	unsupported bool
	// redirect is true if requests without TLS are redirected. downgrade is true if a missing certificate is no fault.
	redirect, downgrade bool

	// manager writes the Certificates of cert-manager, which are managed's. Nil if other replicas write them.
	manager Manager
	managed certmanager.Object
	issuer  settings.Issuer
	// wanted are the wanted Certificates, managedStates their states by host name.
	wanted        []certmanager.Certificate
	managedStates map[string]certmanager.State
}

// Secure requests the certificates of an object, and returns their states. A nil certificates means that the gateway does not serve HTTPS, a nil
// manager that other replicas write Certificates of cert-manager. Call Apply then where this replica writes.
func Secure(ctx context.Context, certificates Certificates, manager Manager, o Object, network *settings.Network) Findings {
	f := secure(ctx, certificates, o, network)
	if f.manager, f.managed, f.issuer = manager, o.Managed, network.Issuer; manager != nil {
		f.managedStates = manager.States(ctx, &f.managed, f.issuer, f.wanted)
	}
	return f
}

// Withdraw ends the requests for certificates of an object without host names.
func Withdraw(ctx context.Context, certificates Certificates, manager Manager, o Object) Findings {
	if certificates != nil {
		certificates.Set(ctx, o.Owner, nil)
	}
	if manager != nil {
		manager.Forget(o.Owner)
	}
	return Findings{manager: manager, managed: o.Managed}
}

// Apply writes the Certificates of cert-manager that an object wants, and deletes its others. It returns errors to retry.
func (f *Findings) Apply(ctx context.Context) error {
	if f.manager == nil {
		return nil
	}
	failed, err := f.manager.Apply(ctx, &f.managed, f.issuer, f.wanted)
	maps.Copy(f.managedStates, failed)
	return err
}

// secure requests the certificates of an object, and finds the wanted Certificates of cert-manager.
func secure(ctx context.Context, certificates Certificates, o Object, network *settings.Network) Findings {
	f := Findings{secret: o.Secret != nil, downgrade: o.Secret == nil && !network.Redirect, states: map[string]hostcerts.State{}}
	f.redirect, f.Fault = servingv1.RedirectsToHTTPS(o.Annotations, network.Redirect)
	enabled := network.ExternalDomainTLS && !servingv1.ExternalTLSDisabled(o.Annotations)
	switch {
	case o.Secret == nil && !enabled:
		f.disabled = "external-domain-tls is not enabled"
	case o.Local:
		f.disabled = "TLS is not enabled for cluster-local"
	case certificates == nil:
		f.disabled = "the gateway does not serve HTTPS"
	}
	if certificates == nil {
		return f
	}
	if f.disabled != "" {
		certificates.Set(ctx, o.Owner, nil)
		return f
	}
	f.hosts = o.Public
	class := servingv1.CertificateClass(o.Annotations, network.CertificateClass)
	managed := o.Secret == nil && class == settings.CertManagerClass
	problem := unsupported(o.Secret, class)
	f.unsupported = problem != ""
	var requests []hostcerts.Request
	if !f.unsupported {
		for _, name := range o.Public {
			request := hostcerts.Request{Host: name, Secret: ptr.Deref(o.Secret, ""), ACME: o.Secret == nil && class == settings.ACMEClass}
			if managed {
				request.Secret = o.ManagedName(name)
				f.wanted = append(f.wanted, certmanager.Certificate{Name: request.Secret, Host: name})
			}
			requests = append(requests, request)
		}
	}
	certificates.Set(ctx, o.Owner, requests)
	for _, name := range o.Public {
		if f.states[name] = (hostcerts.State{Problem: problem}); !f.unsupported {
			f.states[name] = certificates.State(name)
		}
	}
	return f
}

// unsupported returns why there can be no certificate in the Secret that a user names, or otherwise of a class. It is empty if there can be one.
func unsupported(secret *string, class string) string {
	switch {
	case secret != nil && len(validation.IsDNS1123Subdomain(*secret)) > 0:
		return fmt.Sprintf("no Secret can have the name %q", *secret)
	case secret != nil, class == settings.SelfManagedClass, class == settings.ACMEClass, class == settings.CertManagerClass:
		return ""
	}
	return fmt.Sprintf("certificate class %q is not supported, only %q, %q and %q", class, settings.SelfManagedClass, settings.ACMEClass, settings.CertManagerClass)
}

// Serves reports whether the gateway of this replica serves HTTPS for a host name.
func (f *Findings) Serves(name string) bool { return f.states[name].Ready }

// Redirects reports whether the gateway redirects requests to a host name to HTTPS.
func (f *Findings) Redirects(name string) bool { return f.redirect && f.Serves(name) }

// HTTPS reports whether the URL of a host name is HTTPS.
func (f *Findings) HTTPS(name string) bool {
	state, wanted := f.states[name]
	return wanted && (state.Ready || !f.downgrade)
}

// Condition returns CertificateProvisioned, which is of the given type.
func (f *Findings) Condition(t duckv1.ConditionType) duckv1.Condition {
	provisioned := reconciler.True(t)
	if f.disabled != "" {
		provisioned.Reason, provisioned.Message = ReasonTLSNotEnabled, f.disabled
		return provisioned
	}
	for _, name := range f.hosts {
		state := f.state(name)
		switch {
		case f.managedStates[name].NotOwned:
			return reconciler.False(t, ReasonCertificateNotOwned, fmt.Sprintf("There is an existing certificate %s that we don't own.", f.certificateName(name)))
		case f.secret && state.Ready && !state.Outdated:
			provisioned.Reason, provisioned.Message = ReasonCertificateExternallyProvided, "TLS certificate was provided externally"
			if state.Problem != "" {
				provisioned.Message += ", but " + state.Problem
			}
		case f.secret || f.unsupported && !f.downgrade:
			return reconciler.False(t, ReasonCertificateProvisionFailed, fmt.Sprintf("Certificate %s fails to be provisioned: %s.", name, state.Problem))
		case state.Ready && !state.Outdated:
			if state.Problem != "" {
				provisioned.Message = fmt.Sprintf("Certificate %s is ready, but %s.", name, state.Problem)
			}
		case f.downgrade:
			provisioned.Reason = ReasonHTTPDowngrade
			// The first sentence is the one of Knative's releases.
			provisioned.Message = fmt.Sprintf("Certificate %s is not ready downgrade HTTP. The host is served without TLS until it is: %s.", name, state.Problem)
			return provisioned
		case state.Failed:
			return reconciler.False(t, ReasonCertificateProvisionFailed, fmt.Sprintf("Certificate %s fails to be provisioned: %s.", name, state.Problem))
		default:
			return reconciler.Unknown(t, ReasonCertificateNotReady, fmt.Sprintf("Certificate %s is not ready: %s.", name, state.Problem))
		}
	}
	return provisioned
}

// state returns the state of the certificate of a host name, including its Certificate of cert-manager.
func (f *Findings) state(name string) hostcerts.State {
	state, managed := f.states[name], f.managedStates[name]
	switch {
	case managed.Problem == "":
	case state.Problem == "" || !state.Ready:
		// Without a certificate, its Secret is missing, which follows from the Certificate.
		state.Problem, state.Failed = managed.Problem, managed.Failed
	default:
		state.Problem, state.Failed = managed.Problem+"; "+state.Problem, managed.Failed
	}
	return state
}

// certificateName returns the name of the Certificate of cert-manager of a host name.
func (f *Findings) certificateName(host string) string {
	for _, c := range f.wanted {
		if c.Host == host {
			return c.Name
		}
	}
	return ""
}

package hostcerts

import (
	"time"

	"k8s.io/component-base/metrics"
)

// newExpiries returns the gauge of the earliest expiry of host certificates, with one time series for each source.
func newExpiries(register func(...metrics.Registerable)) *metrics.GaugeVec {
	expiries := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "knative_apiserver", Name: "host_certificate_expiration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Earliest expiry time of the certificates of public host names of a source (acme, authority or secret), in seconds since 1970.",
	}, []string{"source"})
	if register != nil {
		register(expiries)
	}
	return expiries
}

// measure updates the metric of expiry times.
func (p *Provisioner) measure() {
	earliest := map[string]time.Time{"acme": {}, "authority": {}, "secret": {}}
	p.mu.Lock()
	for _, h := range p.hosts {
		if h.certificate == nil || h.certificate.Leaf == nil {
			continue
		}
		source := "authority"
		switch {
		case h.issued != nil:
		case h.claim.acme:
			source = "acme"
		case h.claim.secret != "":
			source = "secret"
		}
		if at := h.certificate.Leaf.NotAfter; earliest[source].IsZero() || at.Before(earliest[source]) {
			earliest[source] = at
		}
	}
	p.mu.Unlock()
	for source, at := range earliest {
		if at.IsZero() {
			p.expiries.DeleteLabelValues(source)
		} else {
			p.expiries.WithLabelValues(source).Set(float64(at.Unix()))
		}
	}
}

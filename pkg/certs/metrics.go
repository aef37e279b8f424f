package certs

import (
	"time"

	"k8s.io/component-base/metrics"
)

// newExpiries returns the gauge of certificate expiry times, with one time series for each certificate.
func newExpiries(register func(...metrics.Registerable)) *metrics.GaugeVec {
	expiries := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "knative_apiserver", Name: "certificate_expiration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Expiry time of a certificate (ca, serving, peer, etcd_ca or etcd), in seconds since 1970.",
	}, []string{"certificate"})
	if register != nil {
		register(expiries)
	}
	return expiries
}

// seconds converts a time to a metric value.
func seconds(t time.Time) float64 { return float64(t.Unix()) }

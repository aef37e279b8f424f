package certs

import (
	"time"

	"k8s.io/component-base/metrics"
)

// newExpiries returns the gauge of when certificates expire, one time series for each of them.
func newExpiries(register func(...metrics.Registerable)) *metrics.GaugeVec {
	expiries := metrics.NewGaugeVec(&metrics.GaugeOpts{
		Namespace: "knative_apiserver", Name: "certificate_expiration_seconds", StabilityLevel: metrics.ALPHA,
		Help: "Time at which a certificate expires, in seconds since 1970: ca, serving, peer, etcd_ca or etcd.",
	}, []string{"certificate"})
	if register != nil {
		register(expiries)
	}
	return expiries
}

// seconds is a time as metrics have it.
func seconds(t time.Time) float64 { return float64(t.Unix()) }

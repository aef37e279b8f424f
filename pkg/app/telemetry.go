package app

import (
	"context"

	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/component-base/version"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
	"github.com/knative-apiserver/knative-apiserver/pkg/telemetry"
)

// newTelemetry returns the export of traces and metrics that follows config-observability. namespace is the system namespace; empty without a
// host cluster.
func newTelemetry(ctx context.Context, registry metricsRegistry, store *settings.Store, file settings.Tracing, namespace string) *telemetry.Telemetry {
	t := telemetry.New(ctx, telemetry.Options{
		Default: file, Gatherer: legacyregistry.DefaultGatherer, Register: registry.MustRegister,
		Namespace: namespace, Version: version.Get().GitVersion, Logger: klog.FromContext(ctx).WithName("telemetry"),
	})
	apply := func() { t.Apply(store.Get().Observability) } //nolint:contextcheck,nolintlint // exports end by Stop
	store.Subscribe(apply)
	apply()
	return t
}

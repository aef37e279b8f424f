package app

import (
	"context"

	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	brokercontroller "github.com/knative-apiserver/knative-apiserver/pkg/controllers/broker"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/archive"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
)

// newArchives returns the archives of Brokers, or nil if they are disabled.
func (o *eventingOptions) newArchives(ctx context.Context, log *eventlog.Log, known *knownObjects) *archive.Store {
	if o.ArchiveMaxRetention == 0 {
		return nil
	}
	archives := archive.NewStore(archive.Options{
		Log: log, MaxRetention: o.ArchiveMaxRetention, MaxBytes: o.ArchiveMaxBytes, Gone: known.gone,
		Clock: clock.RealClock{}, Logger: klog.FromContext(ctx).WithName("archives"),
	})
	o.registry.CustomMustRegister(archives)
	return archives
}

// archiving returns what configures the archives of Brokers, which may be nil.
func (o *eventingOptions) archiving(archives *archive.Store) *brokercontroller.Archiving {
	a := &brokercontroller.Archiving{
		ConfigMaps: o.core.CoreV1(), Informer: o.configMaps, SystemNamespace: o.faults.namespace,
		MaxRetention: o.ArchiveMaxRetention, MaxBytes: o.ArchiveMaxBytes,
	}
	if archives != nil {
		a.Archives = archives
	}
	return a
}

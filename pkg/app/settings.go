package app

import (
	"context"
	"fmt"

	"k8s.io/client-go/kubernetes"

	"github.com/knative-apiserver/knative-apiserver/pkg/app/lifecycle"
	"github.com/knative-apiserver/knative-apiserver/pkg/settings"
)

// settingsModule keeps a Store current: with the ConfigMaps of a namespace or of a directory.
type settingsModule struct {
	lifecycle.Tasks
	store  *settings.Store
	faults *faults
	// dir is the directory of the ConfigMaps. Empty reads them from the namespace of faults, with the client.
	dir    string
	client kubernetes.Interface
}

// Name implements lifecycle.Module.
func (*settingsModule) Name() string { return "settings" }

// Start reads the settings.
func (m *settingsModule) Start(ctx context.Context, fail func(error)) error {
	m.Begin(ctx, fail)
	return m.Init(ctx, func(ctx context.Context) error {
		if m.dir != "" {
			if err := m.store.WatchDir(ctx, m.dir, m.faults); err != nil {
				return fmt.Errorf("read --config-dir: %w", err)
			}
			return nil
		}
		return m.store.WatchConfigMaps(ctx, m.client, m.faults.namespace, m.faults)
	})
}

package harness

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Configure sets keys of a ConfigMap of the server, and returns a function that gives them their former values, or removes added ones.
func Configure(ctx context.Context, host kubernetes.Interface, name string, values map[string]string) (restore func(context.Context) error, err error) {
	configMaps := host.CoreV1().ConfigMaps(SystemNamespace)
	before, err := configMaps.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read ConfigMap %s: %w", name, err)
	}
	changed, former := map[string]any{}, map[string]any{}
	for key, value := range values {
		changed[key], former[key] = value, nil
		if value, found := before.Data[key]; found {
			former[key] = value
		}
	}
	write := func(ctx context.Context, data map[string]any) error {
		patch, err := json.Marshal(map[string]any{"data": data})
		if err != nil {
			return err
		}
		if _, err = configMaps.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return fmt.Errorf("patch ConfigMap %s: %w", name, err)
		}
		return nil
	}
	return func(ctx context.Context) error { return write(ctx, former) }, write(ctx, changed)
}

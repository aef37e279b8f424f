package restore

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/storage/value"

	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

const (
	// maxBatchObjects and maxBatchBytes bound a transaction, below the limits of etcd (128 operations, 1.5 MiB).
	maxBatchObjects = 100
	maxBatchBytes   = 512 << 10
)

// uidLabels are the labels that hold UIDs of objects of this server.
var uidLabels = []string{
	servingv1.ServiceUIDLabelKey, servingv1.ConfigurationUIDLabelKey, servingv1.GroupName + "/revisionUID",
}

// object is a stored object.
type object struct {
	resource *Resource
	stored   *mvccpb.KeyValue
	content  map[string]any
}

// each calls do for all stored objects.
func (r *run) each(ctx context.Context, do func(ctx context.Context, o *object) error) error {
	for i := range r.Resources {
		resource := &r.Resources[i]
		end := clientv3.GetPrefixRangeEnd(resource.Prefix)
		for start, more := resource.Prefix, true; more; {
			page, err := r.Etcd.Get(ctx, start, clientv3.WithRange(end), clientv3.WithLimit(pageSize))
			if err != nil {
				return fmt.Errorf("list %s: %w", resource.GroupResource, err)
			}
			for _, stored := range page.Kvs {
				content, err := resource.decode(ctx, stored)
				if err != nil {
					return fmt.Errorf("decode %q: %w", stored.Key, err)
				}
				if err := do(ctx, &object{resource: resource, stored: stored, content: content}); err != nil {
					return err
				}
				start = string(stored.Key) + "\x00"
			}
			more = page.More
		}
	}
	return nil
}

func (r *Resource) decode(ctx context.Context, stored *mvccpb.KeyValue) (map[string]any, error) {
	data := stored.Value
	if r.Transformer != nil {
		var err error
		if data, _, err = r.Transformer.TransformFromStorage(ctx, data, value.DefaultContext(stored.Key)); err != nil {
			return nil, err
		}
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	// UseNumber preserves the notation of numbers.
	decoder.UseNumber()
	var content map[string]any
	return content, decoder.Decode(&content)
}

func (r *Resource) encode(ctx context.Context, key []byte, content map[string]any) ([]byte, error) {
	data, err := json.Marshal(content)
	if err != nil || r.Transformer == nil {
		return data, err
	}
	return r.Transformer.TransformToStorage(ctx, data, value.DefaultContext(key))
}

// observe records the original UID of an object.
func (r *run) observe(_ context.Context, o *object) error {
	metadata, _ := o.content["metadata"].(map[string]any)
	if uid, _ := metadata["uid"].(string); uid != "" {
		r.origins.Insert(origin.UID(types.UID(uid)))
	}
	return nil
}

// rewriteStorage gives all stored objects their new UIDs. It continues from the state that an interrupted attempt left.
func (r *run) rewriteStorage(ctx context.Context) error {
	var batch struct {
		ops        []clientv3.Op
		conditions []clientv3.Cmp
		bytes      int
	}
	flush := func() error {
		if len(batch.ops) == 0 {
			return nil
		}
		if err := r.commitAll(ctx, batch.ops, batch.conditions); err != nil {
			return err
		}
		r.rewritten += len(batch.ops)
		batch.ops, batch.conditions, batch.bytes = nil, nil, 0
		return nil
	}
	err := r.each(ctx, func(ctx context.Context, o *object) error {
		if !r.rewrite(o.content) {
			return nil
		}
		data, err := o.resource.encode(ctx, o.stored.Key, o.content)
		if err != nil {
			return fmt.Errorf("encode %q: %w", o.stored.Key, err)
		}
		if len(batch.ops) == maxBatchObjects || batch.bytes+len(data) > maxBatchBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		key := string(o.stored.Key)
		batch.ops = append(batch.ops, clientv3.OpPut(key, string(data)))
		batch.conditions = append(batch.conditions, clientv3.Compare(clientv3.ModRevision(key), "=", o.stored.ModRevision))
		batch.bytes += len(data)
		return nil
	})
	if err != nil {
		return err
	}
	return flush()
}

// rewrite replaces the UIDs of restored objects in an object: its own, and UIDs it refers to. It reports whether it replaced
// any.
func (r *run) rewrite(content map[string]any) bool {
	changed := false
	replace := func(in map[string]any, key string) {
		uid, _ := in[key].(string)
		if restored := string(r.restored(types.UID(uid))); uid != "" && restored != uid {
			in[key], changed = restored, true
		}
	}
	metadata, _ := content["metadata"].(map[string]any)
	replace(metadata, "uid")
	for _, reference := range maps(metadata["ownerReferences"]) {
		replace(reference, "uid")
	}
	if labels, ok := metadata["labels"].(map[string]any); ok {
		for _, label := range uidLabels {
			replace(labels, label)
		}
	}
	for _, entry := range maps(metadata["managedFields"]) {
		entry["fieldsV1"] = r.rewriteFields(entry["fieldsV1"])
	}
	for _, part := range []string{"spec", "status"} {
		if part, ok := content[part].(map[string]any); ok {
			for _, subscriber := range maps(part["subscribers"]) {
				replace(subscriber, "uid")
			}
		}
	}
	return changed
}

// rewriteFields returns a set of managed fields in which the keys of list items have the new UIDs: k:{"uid":"..."}.
func (r *run) rewriteFields(fields any) any {
	set, ok := fields.(map[string]any)
	if !ok {
		return fields
	}
	rewritten := make(map[string]any, len(set))
	for field, nested := range set {
		if item, found := strings.CutPrefix(field, "k:"); found {
			var key map[string]any
			if json.Unmarshal([]byte(item), &key) == nil {
				if uid, _ := key["uid"].(string); uid != "" {
					field = strings.Replace(field, uid, string(r.restored(types.UID(uid))), 1)
				}
			}
		}
		rewritten[field] = r.rewriteFields(nested)
	}
	return rewritten
}

// maps returns the items of a list of objects.
func maps(list any) []map[string]any {
	items, _ := list.([]any)
	all := make([]map[string]any, 0, len(items))
	for _, item := range items {
		if item, ok := item.(map[string]any); ok {
			all = append(all, item)
		}
	}
	return all
}

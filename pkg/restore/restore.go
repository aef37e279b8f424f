// Package restore completes the restore of objects from a snapshot before the API serves them.
//
// The host's garbage collector remembers the UIDs of owners that were deleted once, and deletes all objects that refer to
// them, even if an owner with such a UID exists again. So each restored object gets a UID that was never used (package
// origin), in the storage and in the owner references of the Deployments and core Services that belong to it in the host
// cluster. The garbage collector cannot observe an intermediate state, because the API is not served yet.
package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/origin"
)

const (
	// ConfigMapName is the name of the ConfigMap, in the system namespace, whose key IDKey holds the ID of the latest restore.
	// It is written while no server runs.
	ConfigMapName = "knative-apiserver-restore"
	// IDKey is the key of the ID in that ConfigMap.
	IDKey = "id"

	// completedKey follows the storage prefix in the key of the ID of the latest completed restore.
	completedKey = "/completed-restore"
	// pageSize is the number of objects read at once. Each may have 1.5 MiB.
	pageSize = 50
	// attemptTimeout bounds one attempt to complete a restore.
	attemptTimeout = 10 * time.Minute
	retryInterval  = time.Second
)

// errOvertaken is returned if another replica changed an object or completed the restore concurrently.
var errOvertaken = errors.New("another replica made progress")

// Resource is a kind of objects in etcd.
type Resource struct {
	schema.GroupResource
	// Prefix of the keys of its objects, ending with "/".
	Prefix string
	// Transformer decrypts and encrypts stored objects. Nil if they are stored in plain text.
	Transformer value.Transformer
}

// Options configure Complete.
type Options struct {
	// Etcd stores the objects.
	Etcd *clientv3.Client
	// Prefix of all keys of the server in etcd.
	Prefix string
	// Resources that are restored.
	Resources []Resource
	// Host is a client of the host cluster.
	Host kubernetes.Interface
	// Namespace of the server in the host cluster.
	Namespace string
	Logger    klog.Logger
}

// Complete completes the restore that the ConfigMap of the host cluster names, unless the storage records it as complete.
// It retries until ctx is canceled. Replicas may call it concurrently. No replica may serve the API before it returns.
func Complete(ctx context.Context, o Options) error {
	var last error
	var logged string
	err := wait.PollUntilContextCancel(ctx, retryInterval, true, func(ctx context.Context) (bool, error) {
		attempt, cancel := context.WithTimeout(ctx, attemptTimeout)
		defer cancel()
		last = o.complete(attempt)
		if last != nil && !errors.Is(last, errOvertaken) && last.Error() != logged {
			logged = last.Error()
			o.Logger.Error(last, "Failed to complete restore; retrying")
		}
		var invalid *invalidError
		if errors.As(last, &invalid) {
			return false, last
		}
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("complete restore: %w", errors.Join(err, last))
	}
	return nil
}

// invalidError is an error that retries cannot fix.
type invalidError struct{ error }

func (e *invalidError) Unwrap() error { return e.error }

func (o *Options) complete(ctx context.Context) error {
	id, err := o.requested(ctx)
	if err != nil || id == "" {
		return err
	}
	completed, err := o.Etcd.Get(ctx, o.completedKey())
	if err != nil {
		return fmt.Errorf("read %q: %w", o.completedKey(), err)
	}
	r := &run{Options: o, id: id, origins: sets.New[types.UID]()}
	if len(completed.Kvs) > 0 {
		if string(completed.Kvs[0].Value) == id {
			return nil
		}
		r.completed = completed.Kvs[0].ModRevision
	}
	o.Logger.Info("Completing restore", "restore", id)
	if err := r.each(ctx, r.observe); err != nil {
		return err
	}
	if err := r.rewriteStorage(ctx); err != nil {
		return err
	}
	if err := r.rewriteOwners(ctx); err != nil {
		return err
	}
	if err := r.commit(ctx, clientv3.OpPut(o.completedKey(), id)); err != nil {
		return err
	}
	o.Logger.Info("Completed restore", "restore", id, "objects", r.origins.Len(), "rewritten", r.rewritten, "hostObjects", r.hostObjects)
	return nil
}

func (o *Options) completedKey() string { return strings.TrimSuffix(o.Prefix, "/") + completedKey }

// requested returns the ID of the latest restore, or "" if no restore was requested.
func (o *Options) requested(ctx context.Context) (string, error) {
	found, err := o.Host.CoreV1().ConfigMaps(o.Namespace).Get(ctx, ConfigMapName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read ConfigMap \"%s/%s\": %w", o.Namespace, ConfigMapName, err)
	}
	id := found.Data[IDKey]
	if err := origin.ValidateRestore(id); err != nil {
		return "", &invalidError{fmt.Errorf("ConfigMap \"%s/%s\": %w", o.Namespace, ConfigMapName, err)}
	}
	return id, nil
}

// run is one attempt to complete a restore.
type run struct {
	*Options
	id string
	// completed is the revision of the record of the latest completed restore, or 0. No object is written once the record has
	// another revision: a replica that completed the restore may serve requests already.
	completed int64
	// origins holds the original UIDs of all restored objects.
	origins                sets.Set[types.UID]
	rewritten, hostObjects int
}

// restored returns the new UID of a restored object, and any other UID unchanged.
func (r *run) restored(uid types.UID) types.UID {
	if r.origins.Has(origin.UID(uid)) {
		return origin.Restored(uid, r.id)
	}
	return uid
}

// commit applies operations in one transaction. It fails with errOvertaken if the restore was completed concurrently or a
// condition does not hold.
func (r *run) commit(ctx context.Context, op clientv3.Op, conditions ...clientv3.Cmp) error {
	return r.commitAll(ctx, []clientv3.Op{op}, conditions)
}

func (r *run) commitAll(ctx context.Context, ops []clientv3.Op, conditions []clientv3.Cmp) error {
	conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(r.completedKey()), "=", r.completed))
	response, err := r.Etcd.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		return fmt.Errorf("write restored objects: %w", err)
	}
	if !response.Succeeded {
		return errOvertaken
	}
	return nil
}

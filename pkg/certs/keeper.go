package certs

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// retry is the delay before retrying after an error, and before rechecking work that another replica does.
const retry = 2 * time.Second

// keeper maintains an authority in a Secret, and applies its state whenever it changes.
type keeper struct {
	client          kubernetes.Interface
	namespace, name string
	clock           clock.Clock
	logger          klog.Logger
	rotation        rotation
	// rotates reports whether this replica may advance a rotation. Any replica may create a missing Secret.
	rotates func() bool
	// known reports whether all observable clients trust the authorities of a state.
	known func(*state) bool
	// apply applies a state. It is called repeatedly and returns the time of the next call.
	apply func(*state, time.Time) (time.Time, error)

	// informer caches the Secret.
	informer cache.SharedIndexInformer
	// seen is the last state read from the Secret, used to restore a deleted Secret.
	seen *state
	wake chan struct{}
}

// run maintains the Secret until ctx is canceled. While the host cluster is unreachable, the last known state applies.
func (k *keeper) run(ctx context.Context) {
	k.wake = make(chan struct{}, 1)
	k.informer = informerscorev1.NewFilteredSecretInformer(k.client, k.namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		// By name, so that the role does not need permission to read other Secrets.
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, k.name).String()
	})
	changed := func() {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	// It fails only for stopped informers.
	_, _ = k.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(any, any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		k.informer.RunWithContext(ctx)
	}()
	defer func() { <-stopped }()

	if !cache.WaitForCacheSync(ctx.Done(), k.informer.HasSynced) {
		return
	}
	for {
		next, err := k.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			k.logger.Error(err, "Failed to sync certificates; retrying", "secret", klog.KRef(k.namespace, k.name))
			next = k.clock.Now().Add(retry)
		}
		if !k.sleep(ctx, next) {
			return
		}
	}
}

// sleep waits until the Secret changes or until the given time. It returns false when ctx is canceled.
func (k *keeper) sleep(ctx context.Context, until time.Time) bool {
	// At least a second, so that a due step that cannot be performed yet does not cause a busy loop.
	timer := k.clock.NewTimer(max(until.Sub(k.clock.Now()), time.Second))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-k.wake:
	case <-timer.C():
	}
	return true
}

// pass applies the state in the Secret, performs a due step of a rotation, and returns the time of the next pass.
func (k *keeper) pass(ctx context.Context) (time.Time, error) {
	now := k.clock.Now()
	object, exists, err := k.informer.GetStore().GetByKey(k.namespace + "/" + k.name)
	if err != nil {
		return time.Time{}, err
	}
	if !exists {
		// The watch delivers the new Secret; the retry covers the case that it does not.
		return now.Add(retry), k.create(ctx, now)
	}
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return time.Time{}, fmt.Errorf("informer of Secrets contains a %T", object)
	}
	current, err := readState(secret)
	if err != nil {
		return time.Time{}, err
	}
	if current == nil {
		return now.Add(retry), k.fill(ctx, secret, now)
	}
	k.seen = current
	next, err := k.apply(current, now)
	if err != nil {
		return time.Time{}, err
	}
	due, err := k.rotate(ctx, current, now)
	if err != nil {
		return time.Time{}, err
	}
	if due.Before(next) {
		next = due
	}
	return next, nil
}

// create creates the Secret, or restores a deleted one. If another replica was faster, its Secret remains.
func (k *keeper) create(ctx context.Context, now time.Time) error {
	blank := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: k.name, Namespace: k.namespace, Labels: secretLabels()},
		Type:       corev1.SecretTypeOpaque,
	}
	first, err := k.state(now)
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Secrets(k.namespace).Create(ctx, first.write(blank), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Secret %s/%s: %w", k.namespace, k.name, err)
	}
	return nil
}

// secretLabels returns the labels of all Secrets with certificates.
func secretLabels() map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":      "knative-apiserver",
		"app.kubernetes.io/part-of":   "knative-apiserver",
		"app.kubernetes.io/component": "certificates",
	}
}

// fill writes an authority into a Secret without one.
func (k *keeper) fill(ctx context.Context, secret *corev1.Secret, now time.Time) error {
	first, err := k.state(now)
	if err != nil {
		return err
	}
	// A rotation requested before the authority existed is not a reason to replace it.
	first.wanted = secret.Annotations[RotateAnnotation]
	first.rotated = first.wanted
	return k.update(ctx, first.write(secret))
}

// state returns the last state read from the Secret, or a new one.
func (k *keeper) state(now time.Time) (*state, error) {
	if k.seen != nil {
		return k.seen, nil
	}
	return k.rotation.newState(now)
}

// rotate performs a due step of a rotation, and returns the time of the next step.
func (k *keeper) rotate(ctx context.Context, current *state, now time.Time) (time.Time, error) {
	after, due, err := k.rotation.advance(current, now, k.known(current))
	if err != nil || after == nil {
		return due, err
	}
	if !k.rotates() {
		return now.Add(retry), nil
	}
	// The informer may not have observed the latest write of this or another replica yet.
	secret, err := k.client.CoreV1().Secrets(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("read Secret %s/%s: %w", k.namespace, k.name, err)
	}
	if current, err = readState(secret); err != nil || current == nil {
		return now.Add(retry), err
	}
	after, due, err = k.rotation.advance(current, now, k.known(current))
	if err != nil || after == nil {
		return due, err
	}
	if err := k.update(ctx, after.write(secret)); err != nil {
		return time.Time{}, err
	}
	if after.tickets != current.tickets {
		k.logger.V(2).Info("Replaced keys of session tickets", "secret", klog.KRef(k.namespace, k.name))
	} else {
		k.logger.Info("Advanced rotation of certificate authority", "secret", klog.KRef(k.namespace, k.name),
			"trusted", len(after.trusted), "signerExpires", after.signer.cert.NotAfter)
	}
	return now.Add(retry), nil
}

// update writes the Secret. Conflicts are ignored, because the watch delivers the current Secret.
func (k *keeper) update(ctx context.Context, secret *corev1.Secret) error {
	_, err := k.client.CoreV1().Secrets(k.namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update Secret %s/%s: %w", k.namespace, k.name, err)
	}
	return nil
}

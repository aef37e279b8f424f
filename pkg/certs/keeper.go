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

// retry is how long to wait before what failed, or is another replica's to do, is looked at again.
const retry = 2 * time.Second

// keeper keeps an authority in a Secret, and tells what it says: at once where it changes.
type keeper struct {
	client          kubernetes.Interface
	namespace, name string
	clock           clock.Clock
	logger          klog.Logger
	rotation        rotation
	// rotates tells whether this keeper may go on with a rotation now; a Secret that is missing is made by any.
	rotates func() bool
	// known tells whether everybody that can be asked trusts what a state says.
	known func(*state) bool
	// adopt is told what the Secret says, again and again, and returns when it wants to be told next.
	adopt func(*state, time.Time) (time.Time, error)

	// informer knows the Secret.
	informer cache.SharedIndexInformer
	// seen is what the Secret said last, to restore one that was deleted.
	seen *state
	wake chan struct{}
}

// run keeps the Secret until ctx ends. While the host cluster cannot be reached, the last known state holds.
func (k *keeper) run(ctx context.Context) {
	k.wake = make(chan struct{}, 1)
	k.informer = informerscorev1.NewFilteredSecretInformer(k.client, k.namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
		// By name, so that a role need not allow other Secrets to be read.
		o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, k.name).String()
	})
	changed := func() {
		select {
		case k.wake <- struct{}{}:
		default:
		}
	}
	// It fails for informers that were stopped only.
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
		again, err := k.pass(ctx)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			k.logger.Error(err, "Keeping certificates failed, and is tried again", "secret", klog.KRef(k.namespace, k.name))
			again = k.clock.Now().Add(retry)
		}
		if !k.sleep(ctx, again) {
			return
		}
	}
}

// sleep waits until the Secret changes, or until the time given. It returns false at the end of ctx.
func (k *keeper) sleep(ctx context.Context, until time.Time) bool {
	// A second at least, so that what is due but cannot be done does not keep a processor busy.
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

// pass hands on what the Secret says, does the step of a rotation that is due, and returns when to come again.
func (k *keeper) pass(ctx context.Context) (time.Time, error) {
	now := k.clock.Now()
	object, exists, err := k.informer.GetStore().GetByKey(k.namespace + "/" + k.name)
	if err != nil {
		return time.Time{}, err
	}
	if !exists {
		// The watch tells of the new one; until it does, it is looked for again.
		return now.Add(retry), k.create(ctx, now)
	}
	secret, ok := object.(*corev1.Secret)
	if !ok {
		return time.Time{}, fmt.Errorf("an informer of Secrets holds a %T", object)
	}
	current, err := readState(secret)
	if err != nil {
		return time.Time{}, err
	}
	if current == nil {
		return now.Add(retry), k.fill(ctx, secret, now)
	}
	k.seen = current
	again, err := k.adopt(current, now)
	if err != nil {
		return time.Time{}, err
	}
	due, err := k.rotate(ctx, current, now)
	if err != nil {
		return time.Time{}, err
	}
	if due.Before(again) {
		again = due
	}
	return again, nil
}

// create makes the Secret, or restores what it said where it was deleted. Where another replica was faster, its Secret
// counts.
func (k *keeper) create(ctx context.Context, now time.Time) error {
	blank := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: k.name, Namespace: k.namespace, Labels: map[string]string{
			"app.kubernetes.io/name":      "knative-apiserver",
			"app.kubernetes.io/part-of":   "knative-apiserver",
			"app.kubernetes.io/component": "certificates",
		}},
		Type: corev1.SecretTypeOpaque,
	}
	first, err := k.state(now)
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Secrets(k.namespace).Create(ctx, first.write(blank), metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("creating Secret %s/%s: %w", k.namespace, k.name, err)
	}
	return nil
}

// fill writes an authority into a Secret that has none.
func (k *keeper) fill(ctx context.Context, secret *corev1.Secret, now time.Time) error {
	first, err := k.state(now)
	if err != nil {
		return err
	}
	// What was asked for before there was an authority is no reason to replace it.
	first.wanted = secret.Annotations[RotateAnnotation]
	first.rotated = first.wanted
	return k.update(ctx, first.write(secret))
}

// state is what the Secret said last, or a new one.
func (k *keeper) state(now time.Time) (*state, error) {
	if k.seen != nil {
		return k.seen, nil
	}
	return newState(k.rotation.name, k.rotation.validity, now)
}

// rotate does the step of a rotation that is due, and returns when the next one is.
func (k *keeper) rotate(ctx context.Context, current *state, now time.Time) (time.Time, error) {
	after, due, err := k.rotation.advance(current, now, k.known(current))
	if err != nil || after == nil {
		return due, err
	}
	if !k.rotates() {
		return now.Add(retry), nil
	}
	// The watch may be behind what another leader, or we ourselves, have written.
	secret, err := k.client.CoreV1().Secrets(k.namespace).Get(ctx, k.name, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("reading Secret %s/%s: %w", k.namespace, k.name, err)
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
	k.logger.Info("Rotated an authority by one step", "secret", klog.KRef(k.namespace, k.name),
		"trusted", len(after.trusted), "signerExpires", after.signer.cert.NotAfter)
	return now.Add(retry), nil
}

// update writes the Secret, unless it has changed since it was read: then the watch tells what there is now.
func (k *keeper) update(ctx context.Context, secret *corev1.Secret) error {
	_, err := k.client.CoreV1().Secrets(k.namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("updating Secret %s/%s: %w", k.namespace, k.name, err)
	}
	return nil
}

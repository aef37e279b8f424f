package acmecerts

import (
	"bytes"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	informerscorev1 "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/knative-apiserver/knative-apiserver/pkg/shorten"
)

const (
	// accountSecret is the Secret with the account, the pending challenges and the pause. shardPrefix begins the names of the Secrets with
	// certificates, which roles name one by one.
	accountSecret, shardPrefix = "knative-acme-account", "knative-acme-certificates-"
	shards                     = 16
	// maxShard bounds the bytes of the records in a Secret, which holds 1 MiB, maxRecord the bytes of one.
	maxShard, maxRecord = 900 << 10, 64 << 10
	// maxProblem bounds the bytes of a problem that an ACME server reports.
	maxProblem = 512
)

// The keys of accountSecret. An operator may create it with the external account binding that the ACME server requires.
const (
	keyKey, challengesKey, pauseKey = "account.key", "challenges", "pause"
	bindingIDKey, bindingHMACKey    = "eab-key-id", "eab-hmac-key"
)

// record is the stored state of a host name.
type record struct {
	// Certificate is the chain in DER, Key the key in PKCS #8.
	Certificate [][]byte `json:"certificate,omitempty"`
	Key         []byte   `json:"key,omitempty"`
	// Directory is the ACME server that issued it, Renew the time to replace it.
	Directory string    `json:"directory,omitempty"`
	Renew     time.Time `json:"renew,omitzero"`
	// Failures is the number of orders that failed since the last success, Problem the error of the last one, Retry the time of the next.
	Failures int       `json:"failures,omitempty"`
	Problem  string    `json:"problem,omitempty"`
	Retry    time.Time `json:"retry,omitzero"`
}

// held is a record that has been read.
type held struct {
	record
	raw []byte
	// certificate is nil without a valid one.
	certificate *tls.Certificate
}

// challenge is a pending challenge.
type challenge struct {
	Host     string `json:"host"`
	Type     string `json:"type"`
	Token    string `json:"token"`
	Response string `json:"response"`
	// Expires is when others than the replica that added it may remove it.
	Expires time.Time `json:"expires"`
}

// pause is the stored pause.
type pause struct {
	Until  time.Time `json:"until"`
	Reason string    `json:"reason"`
}

func shardName(n int) string { return shardPrefix + strconv.Itoa(n) }

// shardOf returns the name of the Secret with a host name.
func shardOf(host string) string {
	h := fnv.New32a()
	h.Write([]byte(host))
	return shardName(int(h.Sum32() % shards))
}

// follow follows the Secrets until ctx is canceled.
func (i *Issuer) follow(ctx context.Context) {
	var running sync.WaitGroup
	defer running.Wait()
	var synced []cache.InformerSynced
	for _, name := range SecretNames() {
		informer := informerscorev1.NewFilteredSecretInformer(i.options.Client, i.options.Namespace, 0, cache.Indexers{}, func(o *metav1.ListOptions) {
			// By name, so that the role does not need permission to read other Secrets.
			o.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()
		})
		apply := func(object any) {
			if s, ok := object.(*corev1.Secret); ok && s.Name == name {
				i.apply(s)
			}
		}
		// It fails only for stopped informers.
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: apply, UpdateFunc: func(_, after any) { apply(after) },
			DeleteFunc: func(object any) {
				// A deleted certificate is obtained again.
				if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
					object = unknown.Obj
				}
				if s, ok := object.(*corev1.Secret); ok && s.Name == name {
					s = s.DeepCopy()
					s.Data = nil
					i.apply(s)
				}
			},
		})
		if err != nil {
			i.options.Logger.Error(err, "Failed to follow Secret", "secret", klog.KRef(i.options.Namespace, name))
			continue
		}
		synced = append(synced, registration.HasSynced)
		running.Go(func() { informer.RunWithContext(ctx) })
	}
	if cache.WaitForCacheSync(ctx.Done(), synced...) {
		i.isSynced()
	}
	<-ctx.Done()
}

// newer reports whether a resource version may be applied after another.
func newer(version, before string) bool {
	a, errA := strconv.ParseUint(version, 10, 64)
	b, errB := strconv.ParseUint(before, 10, 64)
	return errA != nil || errB != nil || a >= b
}

// apply applies the content of a Secret.
func (i *Issuer) apply(s *corev1.Secret) {
	i.mu.Lock()
	if !newer(s.ResourceVersion, i.versions[s.Name]) {
		i.mu.Unlock()
		return
	}
	i.versions[s.Name] = s.ResourceVersion
	var changed []string
	if s.Name == accountSecret {
		changed = i.applyAccount(s)
	} else {
		changed = i.applyShard(s)
	}
	i.mu.Unlock()
	i.notify(changed)
	i.poke()
}

// applyAccount returns the host names with changed challenges. mu must be held.
func (i *Issuer) applyAccount(s *corev1.Secret) (changed []string) {
	var all []challenge
	var paused pause
	// Invalid content has no challenges and no pause.
	if json.Unmarshal(s.Data[challengesKey], &all) != nil {
		all = nil
	}
	if json.Unmarshal(s.Data[pauseKey], &paused) == nil {
		i.pausedUntil, i.pause = paused.Until, paused.Reason
	}
	next := map[string]challenge{}
	for _, c := range all {
		next[c.Host] = c
		if i.challenges[c.Host] != c {
			changed = append(changed, c.Host)
		}
	}
	for host := range i.challenges {
		if _, found := next[host]; !found {
			changed = append(changed, host)
		}
	}
	i.challenges = next
	return changed
}

// applyShard returns the host names with changed records. mu must be held.
func (i *Issuer) applyShard(s *corev1.Secret) (changed []string) {
	for host, raw := range s.Data {
		before := i.held[host]
		if before != nil && bytes.Equal(before.raw, raw) || shardOf(host) != s.Name {
			continue
		}
		next := &held{raw: raw}
		if err := next.parse(host); err != nil {
			i.options.Logger.Info("Ignored invalid record of a certificate", "secret", klog.KObj(s), "host", host, "reason", err.Error())
		}
		if before != nil && before.certificate != nil && next.certificate != nil && slices.EqualFunc(before.certificate.Certificate, next.certificate.Certificate, slices.Equal) {
			next.certificate = before.certificate
		}
		i.held[host] = next
		changed = append(changed, host)
	}
	for host := range i.held {
		if _, found := s.Data[host]; !found && shardOf(host) == s.Name {
			delete(i.held, host)
			changed = append(changed, host)
		}
	}
	return changed
}

// parse parses the record.
func (h *held) parse(host string) error {
	if err := json.Unmarshal(h.raw, &h.record); err != nil {
		h.record = record{}
		return err
	}
	if len(h.Certificate) == 0 {
		return nil
	}
	key, err := x509.ParsePKCS8PrivateKey(h.Key)
	if err != nil {
		return err
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return errors.New("the key cannot sign")
	}
	h.certificate, err = assemble(host, h.Certificate, signer)
	return err
}

// assemble returns the certificate of a host name, which it checks.
func assemble(host string, chain [][]byte, key crypto.Signer) (*tls.Certificate, error) {
	size := 0
	for _, der := range chain {
		size += len(der)
	}
	if len(chain) == 0 || size > maxRecord/2 {
		return nil, fmt.Errorf("the chain must have 1 to %d bytes, not %d", maxRecord/2, size)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}
	if public, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(key.Public()) {
		return nil, errors.New("the certificate is for another key")
	}
	if err := leaf.VerifyHostname(host); err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, nil
}

// edit changes a Secret, which it creates if it does not exist, and applies it.
func (i *Issuer) edit(ctx context.Context, name string, change func(*corev1.Secret) error) error {
	secrets := i.options.Client.CoreV1().Secrets(i.options.Namespace)
	var written *corev1.Secret
	conflicts := func(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }
	err := retry.OnError(retry.DefaultBackoff, conflicts, func() error {
		existing, err := secrets.Get(ctx, name, metav1.GetOptions{})
		found := err == nil
		switch {
		case apierrors.IsNotFound(err):
			existing = i.secretOf(name)
		case err != nil:
			return err
		case existing.Data == nil:
			existing.Data = map[string][]byte{}
		}
		if err := change(existing); err != nil {
			return err
		}
		if found {
			written, err = secrets.Update(ctx, existing, metav1.UpdateOptions{})
		} else {
			written, err = secrets.Create(ctx, existing, metav1.CreateOptions{})
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("write Secret %s/%s: %w", i.options.Namespace, name, err)
	}
	i.apply(written)
	return nil
}

// save stores the record of a host name.
func (i *Issuer) save(ctx context.Context, host string, r record) error {
	raw, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return i.edit(ctx, shardOf(host), func(s *corev1.Secret) error {
		i.prune(s)
		size := len(raw)
		for other, content := range s.Data {
			if other != host {
				size += len(content) + len(other)
			}
		}
		if size > maxShard {
			return errors.New("it is full: it may have at most 900 KiB")
		}
		s.Data[host] = raw
		return nil
	})
}

// prune removes the records of host names that are not required, if their certificates have expired.
func (i *Issuer) prune(s *corev1.Secret) {
	i.mu.Lock()
	defer i.mu.Unlock()
	now := i.options.Clock.Now()
	for host := range s.Data {
		h := i.held[host]
		if _, wanted := i.wanted[host]; wanted || h == nil {
			continue
		}
		if h.certificate == nil && !now.Before(h.Retry) || h.certificate != nil && !now.Before(h.certificate.Leaf.NotAfter) {
			delete(s.Data, host)
		}
	}
}

// setChallenge adds or, with an empty token, removes the challenge of a host name.
func (i *Issuer) setChallenge(ctx context.Context, host string, c challenge) error {
	return i.edit(ctx, accountSecret, func(s *corev1.Secret) error {
		var all []challenge
		if json.Unmarshal(s.Data[challengesKey], &all) != nil {
			all = nil
		}
		now := i.options.Clock.Now()
		all = slices.DeleteFunc(all, func(other challenge) bool { return other.Host == host || !now.Before(other.Expires) })
		if c.Token != "" {
			all = append(all, c)
		}
		raw, err := json.Marshal(all)
		s.Data[challengesKey] = raw
		return err
	})
}

// text returns an error as bounded text of one line.
func text(err error) string {
	s := strings.Join(strings.Fields(strings.ToValidUTF8(err.Error(), "?")), " ")
	return shorten.Text(strings.TrimSuffix(s, "."), maxProblem)
}

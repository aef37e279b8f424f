// Package deadletter shows the dead letter store as objects of the API.
package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	eventingv1alpha1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1alpha1"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/deadletter"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventing/event"
	"github.com/knative-apiserver/knative-apiserver/pkg/dataplane/eventlog"
	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
	registrydeadletter "github.com/knative-apiserver/knative-apiserver/pkg/registry/eventing/deadletter"
)

const (
	// maxItems and maxBytes bound a list; a dead letter is added while the list has fewer bytes. maxScanned bounds the bytes that are read for
	// one list.
	maxItems, maxBytes, maxScanned = 500, 2 << 20, 64 << 20
	// maxListTime bounds the time in which dead letters are looked for.
	maxListTime = 10 * time.Second
)

// Store is the dead letter store. See deadletter.Store.
type Store interface {
	Position(ctx context.Context, namespace string) (deadletter.Position, error)
	Namespaces(ctx context.Context) ([]string, error)
	Read(ctx context.Context, q deadletter.Query) (letters []deadletter.Letter, next uint64, err error)
	Get(ctx context.Context, namespace string, sequence uint64) (deadletter.Letter, error)
	Delete(ctx context.Context, namespace string, sequence uint64) error
	DeleteAll(ctx context.Context, namespace string, consumer types.UID, before uint64) error
}

// DeadLetters implements the resource by a Store. All fields are required.
type DeadLetters struct {
	Store Store
	// Exists reports whether a Trigger or Subscription exists: the dead letters of others are hidden, until the Store deletes them.
	Exists func(consumer types.UID) bool
	// Consumer returns the UID of a Trigger or Subscription.
	Consumer func(key eventing.Key) (types.UID, bool)
}

var _ registrydeadletter.DeadLetters = &DeadLetters{}

// Get implements registrydeadletter.DeadLetters.
func (d *DeadLetters) Get(ctx context.Context, namespace, name string) (*eventingv1alpha1.DeadLetter, error) {
	position, letter, err := d.find(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	object := objectOf(namespace, position, &letter)
	return &object, nil
}

// find returns the dead letter of a name, and the position of its namespace.
func (d *DeadLetters) find(ctx context.Context, namespace, name string) (deadletter.Position, deadletter.Letter, error) {
	position, err := d.Store.Position(ctx, namespace)
	if err != nil {
		return position, deadletter.Letter{}, errorOf(err, name)
	}
	sequence, ok := position.Sequence(name)
	if !ok {
		return position, deadletter.Letter{}, notFound(name)
	}
	letter, err := d.Store.Get(ctx, namespace, sequence)
	if err == nil && !d.Exists(letter.ConsumerUID) {
		err = deadletter.ErrNotFound
	}
	return position, letter, errorOf(err, name)
}

// Delete implements registrydeadletter.DeadLetters.
func (d *DeadLetters) Delete(ctx context.Context, namespace, name string) error {
	_, letter, err := d.find(ctx, namespace, name)
	if err != nil {
		return err
	}
	return errorOf(d.Store.Delete(ctx, namespace, letter.Sequence), name)
}

// token is a position in a list.
type token struct {
	// Namespace is the namespace of the next dead letter, Next its sequence at the earliest.
	Namespace string `json:"ns"`
	Next      uint64 `json:"next"`
	// Since and End are the Position of the namespace when the list began to read it: later dead letters are not part of the list.
	Since int64  `json:"since,omitempty"`
	End   uint64 `json:"end,omitempty"`
}

func (t *token) encode() string {
	data, err := json.Marshal(t)
	if err != nil {
		// A token consists of texts and numbers.
		return ""
	}
	return base64.RawURLEncoding.EncodeToString(data)
}

func decodeToken(text string) (*token, error) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	t := &token{}
	if err == nil {
		err = json.Unmarshal(data, t)
	}
	if err != nil || len(validation.IsDNS1123Label(t.Namespace)) > 0 {
		return nil, apierrors.NewBadRequest("parameter 'continue' must be the value of metadata.continue of the list before")
	}
	return t, nil
}

// List implements registrydeadletter.DeadLetters.
func (d *DeadLetters) List(ctx context.Context, selection *registrydeadletter.Selection, limit int64, position string) (*eventingv1alpha1.DeadLetterList, error) {
	list := &eventingv1alpha1.DeadLetterList{ListMeta: metav1.ListMeta{ResourceVersion: "0"}, Items: []eventingv1alpha1.DeadLetter{}}
	if name, found := selection.Fields.RequiresExactMatch("metadata.name"); found && selection.Namespace != "" {
		object, err := d.Get(ctx, selection.Namespace, name)
		switch {
		case err == nil && selection.Matches(object):
			list.Items = append(list.Items, *object)
		case err != nil && !apierrors.IsNotFound(err):
			return nil, err
		}
		return list, nil
	}
	namespaces, at, err := d.namespaces(ctx, selection.Namespace, position)
	if err != nil {
		return nil, err
	}
	if limit <= 0 || limit > maxItems {
		limit = maxItems
	}
	w := &walk{DeadLetters: d, selection: selection, begin: time.Now(), limit: int(limit)}
	for _, namespace := range namespaces {
		next := token{Namespace: namespace, Next: 1}
		if at != nil && at.Namespace == namespace {
			next = *at
		}
		more, err := w.read(ctx, &next, func(p deadletter.Position, l *deadletter.Letter) error {
			object := objectOf(namespace, p, l)
			if selection.Matches(&object) {
				list.Items = append(list.Items, object)
				w.found++
				w.bytes += l.Event.Size()
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		if more {
			list.Continue = next.encode()
			break
		}
		if w.full() {
			// Others may follow in the next namespace.
			if i := slices.Index(namespaces, namespace); i+1 < len(namespaces) {
				list.Continue = (&token{Namespace: namespaces[i+1], Next: 1}).encode()
			}
			break
		}
	}
	return list, nil
}

// namespaces returns the namespaces that a list reads, and the position at which it begins.
func (d *DeadLetters) namespaces(ctx context.Context, namespace, position string) (_ []string, at *token, err error) {
	if position != "" {
		if at, err = decodeToken(position); err != nil {
			return nil, nil, err
		}
		if namespace != "" && at.Namespace != namespace {
			return nil, nil, apierrors.NewBadRequest("parameter 'continue' must be from a list of the same namespace")
		}
	}
	if namespace != "" {
		return []string{namespace}, at, nil
	}
	all, err := d.Store.Namespaces(ctx)
	if err != nil {
		return nil, nil, errorOf(err, "")
	}
	if at != nil {
		all = slices.DeleteFunc(all, func(name string) bool { return name < at.Namespace })
	}
	return all, at, nil
}

// walk reads dead letters until a list is full.
type walk struct {
	*DeadLetters
	selection *registrydeadletter.Selection
	begin     time.Time
	limit     int
	// found and bytes are the number and the size of the dead letters in the list, scanned is the number of bytes read.
	found, bytes, scanned int
}

// full reports whether the list has enough dead letters, or enough was read for it.
func (w *walk) full() bool {
	return w.found >= w.limit || w.bytes >= maxBytes || w.scanned >= maxScanned || time.Since(w.begin) >= maxListTime
}

// read passes the dead letters of a namespace to a function from a position on, which it moves. It returns whether more may follow.
func (w *walk) read(ctx context.Context, at *token, do func(deadletter.Position, *deadletter.Letter) error) (more bool, err error) {
	position, err := w.Store.Position(ctx, at.Namespace)
	if errors.Is(err, deadletter.ErrNotFound) {
		return false, nil
	}
	if err != nil {
		return false, errorOf(err, "")
	}
	switch {
	case at.End == 0:
		at.Since, at.End = position.Since.UnixNano(), position.Last
	case at.Since != position.Since.UnixNano():
		return false, apierrors.NewResourceExpired("the namespace was deleted and created again; list from the beginning")
	}
	consumer, possible := w.consumer(at.Namespace)
	if !possible {
		return false, nil
	}
	for at.Next <= at.End {
		count := maxItems
		if w.selection.Labels.Empty() && w.selection.Fields.Empty() {
			count = max(w.limit-w.found, 1)
		}
		letters, next, err := w.Store.Read(ctx, deadletter.Query{
			Namespace: at.Namespace, Consumer: consumer, From: at.Next, Count: count, Bytes: maxBytes - min(w.bytes, maxBytes/2),
		})
		if err != nil {
			return false, errorOf(err, "")
		}
		for i := range letters {
			l := &letters[i]
			if l.Sequence > at.End {
				return false, nil
			}
			if i > 0 && w.full() {
				at.Next = l.Sequence
				return true, nil
			}
			w.scanned += l.Event.Size()
			if w.Exists(l.ConsumerUID) {
				if err := do(position, l); err != nil {
					return false, err
				}
			}
			at.Next = l.Sequence + 1
		}
		if next == 0 {
			return false, nil
		}
		at.Next = max(at.Next, next)
		if w.full() {
			return at.Next <= at.End, nil
		}
	}
	return false, nil
}

// consumer returns the only consumer that the selection allows, if any. possible is false if it does not exist.
func (w *walk) consumer(namespace string) (uid types.UID, possible bool) {
	name, named := w.selection.Fields.RequiresExactMatch(eventingv1alpha1.DeadLetterConsumerNameField)
	for _, kind := range []eventing.Kind{eventing.Trigger, eventing.Subscription} {
		if required, found := w.selection.Fields.RequiresExactMatch(eventingv1alpha1.DeadLetterConsumerKindField); named && found && required == string(kind) {
			return w.Consumer(eventing.Key{Kind: kind, Namespace: namespace, Name: name})
		}
		label := eventingv1alpha1.DeadLetterTriggerLabel
		if kind == eventing.Subscription {
			label = eventingv1alpha1.DeadLetterSubscriptionLabel
		}
		if value, found := w.selection.Labels.RequiresExactMatch(label); found {
			return w.Consumer(eventing.Key{Kind: kind, Namespace: namespace, Name: value})
		}
	}
	return "", true
}

// DeleteAll implements registrydeadletter.DeadLetters.
func (d *DeadLetters) DeleteAll(ctx context.Context, selection *registrydeadletter.Selection) error {
	if selection.Labels.Empty() && selection.Fields.Empty() {
		return errorOf(d.Store.DeleteAll(ctx, selection.Namespace, "", 0), "")
	}
	at := &token{Namespace: selection.Namespace, Next: 1}
	for more := true; more; {
		w := &walk{DeadLetters: d, selection: selection, begin: time.Now(), limit: maxItems}
		var err error
		more, err = w.read(ctx, at, func(p deadletter.Position, l *deadletter.Letter) error {
			object := objectOf(selection.Namespace, p, l)
			if !selection.Matches(&object) {
				return nil
			}
			w.found++
			err := d.Store.Delete(ctx, selection.Namespace, l.Sequence)
			if errors.Is(err, deadletter.ErrNotFound) {
				return nil
			}
			return errorOf(err, object.Name)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func notFound(name string) error {
	return apierrors.NewNotFound(eventingv1alpha1.Resource("deadletters"), name)
}

// errorOf returns an error of the Store as an error of the API.
func errorOf(err error, name string) error {
	switch {
	case err == nil, apierrors.ReasonForError(err) != metav1.StatusReasonUnknown:
		return err
	case errors.Is(err, deadletter.ErrNotFound):
		return notFound(name)
	case errors.Is(err, eventlog.ErrUnavailable), errors.Is(err, eventlog.ErrFull), errors.Is(err, eventlog.ErrClosed):
		unavailable := apierrors.NewServiceUnavailable("the dead letter store is not available: " + err.Error())
		unavailable.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: 1}
		unavailable.ErrStatus.Code = http.StatusServiceUnavailable
		return unavailable
	}
	return apierrors.NewInternalError(err)
}

// objectOf returns a dead letter as an object of the API.
func objectOf(namespace string, p deadletter.Position, l *deadletter.Letter) eventingv1alpha1.DeadLetter {
	name := p.Name(l.Sequence)
	d := eventingv1alpha1.DeadLetter{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: uidOf(namespace, name, p),
			ResourceVersion: strconv.FormatUint(l.Sequence, 10), CreationTimestamp: metav1.NewTime(l.Stored), Labels: labelsOf(l),
		},
		Consumer: reference(namespace, l.Consumer), Stream: reference(namespace, l.Stream),
		Subscriber: l.Address, Reason: eventingv1alpha1.DeadLetterSubscriberFailed,
		Attempts: int32(min(max(l.Attempts, 0), math.MaxInt32)), LastCode: int32(min(max(l.Code, 0), math.MaxInt32)), LastError: valid(l.Error),
		AcceptedAt: microTime(l.Accepted), FailedAt: microTime(l.Failed), Event: eventOf(l.Event),
	}
	d.Consumer.UID = l.ConsumerUID
	if l.Reply {
		d.Reason = eventingv1alpha1.DeadLetterReplyFailed
	}
	if text := strings.ToValidUTF8(string(l.Response), ""); isText(text) {
		d.LastResponse = text
	}
	return d
}

// uidOf returns the UID of a dead letter, which is the same at each replica: a UUID of version 8 (RFC 9562).
func uidOf(namespace, name string, p deadletter.Position) types.UID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", namespace, name, p.Since.UnixNano()))
	sum[6], sum[8] = sum[6]&0x0f|0x80, sum[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", sum[:4], sum[4:6], sum[6:8], sum[8:10], sum[10:16]))
}

// valid returns a text without invalid bytes: a limit may have cut a character.
func valid(text string) string { return strings.ToValidUTF8(text, "") }

func reference(namespace string, key eventing.Key) eventingv1alpha1.DeadLetterObject {
	o := eventingv1alpha1.DeadLetterObject{Kind: string(key.Kind), Name: key.Name}
	if key.Namespace != namespace {
		o.Namespace = key.Namespace
	}
	return o
}

func microTime(t time.Time) *metav1.MicroTime {
	if t.IsZero() {
		return nil
	}
	micro := metav1.NewMicroTime(t)
	return &micro
}

func labelsOf(l *deadletter.Letter) map[string]string {
	all := map[string]string{}
	for _, key := range []eventing.Key{l.Consumer, l.Stream} {
		label := map[eventing.Kind]string{
			eventing.Broker: eventingv1alpha1.DeadLetterBrokerLabel, eventing.Trigger: eventingv1alpha1.DeadLetterTriggerLabel,
			eventing.Channel: eventingv1alpha1.DeadLetterChannelLabel, eventing.Subscription: eventingv1alpha1.DeadLetterSubscriptionLabel,
		}[key.Kind]
		if label != "" && len(validation.IsValidLabelValue(key.Name)) == 0 {
			all[label] = key.Name
		}
	}
	return all
}

func eventOf(e *event.Event) eventingv1alpha1.DeadLetterEvent {
	d := eventingv1alpha1.DeadLetterEvent{SpecVersion: "1.0"}
	if e.V03 {
		d.SpecVersion = "0.3"
	}
	for i := range e.Attributes {
		a := &e.Attributes[i]
		switch value := valid(a.Value); a.Name {
		case event.ID:
			d.ID = value
		case event.Source:
			d.Source = value
		case event.EventType:
			d.Type = value
		default:
			if d.Attributes == nil {
				d.Attributes = map[string]string{}
			}
			d.Attributes[a.Name] = value
		}
	}
	for _, h := range e.Headers {
		if d.Headers == nil {
			d.Headers = map[string]string{}
		}
		if before, found := d.Headers[h.Name]; found {
			d.Headers[h.Name] = before + ", " + valid(h.Value)
			continue
		}
		d.Headers[h.Name] = valid(h.Value)
	}
	if text := string(e.Data); isText(text) {
		d.Data = text
	} else {
		d.DataBase64 = e.Data
	}
	return d
}

// isText reports whether data can be shown as it is: it has no control characters but white space.
func isText(data string) bool {
	return utf8.ValidString(data) && !strings.ContainsFunc(data, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\r' && r != '\t'
	})
}

package membership

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// RegistrarElement is the first element of the paths that a Registrar serves.
const RegistrarElement = "members"

// The parameters of requests to a Registrar.
const addressParameter, uidParameter = "address", "uid"

// Registrar writes the Leases of replicas that have no permission to write them: PUT of a member creates or renews its Lease, DELETE
// deletes it. A member must be a Pod of the system namespace with a label, and only its own address is announced. The caller must
// have been authenticated as a replica.
type Registrar struct {
	// Client accesses Leases and Pods of the host cluster.
	Client kubernetes.Interface
	// Namespace is the namespace of the Leases and Pods, PodLabel the label with the value true of the Pods.
	Namespace, PodLabel string
	// Installation is the installation of all members.
	Installation string
	Clock        clock.Clock
}

var _ http.Handler = (*Registrar)(nil)

// errNotMember is the error for a member that is not such a Pod.
var errNotMember = errors.New("not a Pod of this installation")

// ServeHTTP implements http.Handler.
func (s *Registrar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	member := Member{Name: strings.TrimPrefix(r.URL.Path, "/"), Address: query.Get(addressParameter)}
	var err error
	switch r.Method {
	case http.MethodPut:
		err = s.write(r.Context(), member, types.UID(query.Get(uidParameter)), (*ownLease).write)
	case http.MethodDelete:
		err = s.write(r.Context(), member, types.UID(query.Get(uidParameter)), (*ownLease).remove)
	default:
		http.Error(w, "method must be PUT or DELETE", http.StatusMethodNotAllowed)
		return
	}
	switch {
	case err == nil:
		w.WriteHeader(http.StatusNoContent)
	case errors.Is(err, errNotMember):
		http.Error(w, err.Error(), http.StatusForbidden)
	default:
		klog.FromContext(r.Context()).Info("Failed to write Lease of another replica", "replica", member.Name, "reason", err.Error())
		http.Error(w, "write Lease", http.StatusServiceUnavailable)
	}
}

func (s *Registrar) write(ctx context.Context, member Member, uid types.UID, write func(*ownLease, context.Context) error) error {
	if err := s.verify(ctx, member, uid); err != nil {
		return err
	}
	lease := &ownLease{
		client: s.Client.CoordinationV1(), clock: s.Clock, namespace: s.Namespace, installation: s.Installation, holder: member, podUID: uid,
	}
	existing, err := lease.leases().Get(ctx, lease.name(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return err
	case existing.Labels[installationLabel] != s.Installation:
		return errNotMember
	default:
		lease.written = existing
	}
	return write(lease, ctx)
}

// verify fails unless a member is a Pod with its address.
func (s *Registrar) verify(ctx context.Context, member Member, uid types.UID) error {
	at, err := netip.ParseAddrPort(member.Address)
	if err != nil || member.Name == "" || uid == "" {
		return errNotMember
	}
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(ctx, member.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return errNotMember
	}
	if err != nil {
		return fmt.Errorf("read Pod %s/%s: %w", s.Namespace, member.Name, err)
	}
	hasAddress := func(ip corev1.PodIP) bool {
		address, err := netip.ParseAddr(ip.IP)
		return err == nil && address.Unmap() == at.Addr().Unmap()
	}
	if pod.UID != uid || pod.Labels[s.PodLabel] != "true" || !slices.ContainsFunc(pod.Status.PodIPs, hasAddress) {
		return errNotMember
	}
	return nil
}

// Registration is the membership of a replica whose Lease a Registrar writes. It implements Announcer.
type Registration struct {
	// Send sends a request to the Registrar of another replica.
	Send   func(ctx context.Context, method, path string, query url.Values) error
	Self   Member
	PodUID types.UID

	// mu is held while a request is sent. It guards released.
	mu       sync.Mutex
	released bool
}

var _ Announcer = (*Registration)(nil)

// Renew implements Announcer. It has no effect after Release.
func (r *Registration) Renew(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.released {
		return nil
	}
	return r.send(ctx, http.MethodPut)
}

// Release implements Announcer.
func (r *Registration) Release(ctx context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.released = true
	return r.send(ctx, http.MethodDelete)
}

func (r *Registration) send(ctx context.Context, method string) error {
	query := url.Values{addressParameter: {r.Self.Address}, uidParameter: {string(r.PodUID)}}
	if err := r.Send(ctx, method, "/"+RegistrarElement+"/"+r.Self.Name, query); err != nil {
		return fmt.Errorf("write Lease through another replica: %w", err)
	}
	return nil
}

package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/server/v3/embed"
)

const (
	// memberTimeout is how long a member waits for the others if nothing else is said.
	memberTimeout = 15 * time.Minute
	// retryEvery is the time between attempts, tellEvery that between lines in the log about what is waited for.
	retryEvery = time.Second
	tellEvery  = 10 * time.Second
	// requestTimeout bounds each request to the other members and to the record.
	requestTimeout = 7 * time.Second
	// Members beat ten times before one of them is held for gone. They share their machines with the load they serve.
	heartbeatMs, electionMs = 200, 2000
	// maxLearners lets several members join at the same time.
	maxLearners = 8
)

// ErrOtherCluster says that the data of a member is of another cluster than the one in the record.
var ErrOtherCluster = errors.New("the data is of another etcd cluster than the recorded one")

// TLSFiles are those of the certificate that a member shows to the others, as server and as client, of its key, and of the
// authorities that the others' are from. Certificate and key are read at each handshake, the authorities when the member
// starts.
type TLSFiles struct {
	CertFile, KeyFile, CAFile string
}

// MemberOptions describe a member of a cluster.
type MemberOptions struct {
	// Dir holds the data. It is created, with mode 0700.
	Dir string
	// Name is the member's own for good, such as that of its pod in a StatefulSet.
	Name string
	// PeerAddress is where the others reach the member, host and port; its certificate must be for that host.
	PeerAddress string
	// Listen and ListenClient are the addresses, IP and port, where it listens for members and for their clients. The others
	// find the latter's port at the host of PeerAddress.
	Listen, ListenClient string
	TLS                  TLSFiles
	Record               Record
	// Timeout is how long to wait for the others; 0 means 15 minutes.
	Timeout time.Duration
	Logger  logr.Logger
}

// member is one that is being started.
type member struct {
	MemberOptions
	self Peer
	// added is the ID under which the cluster expects the member, and asked says that this process had it do so. An ID that an
	// earlier process was given is not used: what was stored under it may be lost, and a member that forgot what it agreed to
	// breaks the cluster.
	added uint64
	asked bool
	// fresh says that this process made the cluster.
	fresh bool
}

// StartMember runs a member of a cluster and returns when it takes part in it, with all that the cluster knows. One that
// has data goes on with it. Of those that have none, one makes the cluster (the first that enters itself into the record),
// and the others join it, as does one that has lost its data. It waits for others, and tells what for, until the timeout
// or the end of ctx; then its error wraps ErrNoQuorum if they are too few. It fails with ErrInUse when another process runs
// on the directory, and with ErrOtherCluster when the record is of a cluster that the data does not belong to.
func StartMember(ctx context.Context, o MemberOptions) (_ *Embedded, err error) {
	m, err := newMember(o)
	if err != nil {
		return nil, err
	}
	e := &Embedded{}
	defer func() {
		if err != nil {
			e.Stop()
		}
	}()
	if err := e.open(o.Dir); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, m.Timeout)
	defer cancel()
	var told time.Time
	for {
		err := m.start(ctx, e)
		if err == nil {
			e.reserve()
			m.Logger.Info("This member of etcd runs", "member", m.Name, "peer", m.self.PeerURL)
			return e, nil
		}
		e.halt()
		if errors.Is(err, ErrOtherCluster) || ctx.Err() != nil {
			return nil, fmt.Errorf("starting etcd member '%s': %w", m.Name, err)
		}
		if time.Since(told) >= tellEvery {
			told = time.Now()
			m.Logger.Info("This member of etcd cannot start yet and tries again", "member", m.Name, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("starting etcd member '%s': %w", m.Name, err)
		case <-time.After(retryEvery):
		}
	}
}

func newMember(o MemberOptions) (*member, error) {
	host, _, err := net.SplitHostPort(o.PeerAddress)
	if err != nil {
		return nil, fmt.Errorf("address of etcd member '%s' for its peers: %w", o.Name, err)
	}
	_, port, err := net.SplitHostPort(o.ListenClient)
	if err != nil {
		return nil, fmt.Errorf("address of etcd member '%s' to listen for clients at: %w", o.Name, err)
	}
	if o.Timeout == 0 {
		o.Timeout = memberTimeout
	}
	o.Logger = o.Logger.WithName("etcd")
	return &member{MemberOptions: o, self: Peer{
		Name:    o.Name,
		PeerURL: "https://" + o.PeerAddress, ClientURL: "https://" + net.JoinHostPort(host, port),
	}}, nil
}

// hasLog says whether there is a log of what was decided, with which a member has data. Where it cannot be looked for, that
// is an error: who takes it for missing begins anew.
func hasLog(dir string) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(dataDir(dir), "member", "wal"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("looking for the log: %w", err)
	}
	return slices.ContainsFunc(entries, func(entry os.DirEntry) bool { return filepath.Ext(entry.Name()) == ".wal" }), nil
}

// start makes one attempt. What it leaves running in e after an error is to be halted.
func (m *member) start(ctx context.Context, e *Embedded) error {
	config := m.config(e)
	if found, err := hasLog(m.Dir); err != nil {
		return err
	} else if !found {
		if err := m.enter(ctx, config); err != nil {
			return err
		}
	}
	var err error
	if e.server, err = embed.StartEtcd(config); err != nil {
		return fmt.Errorf("on %s: %w", config.Dir, err)
	}
	if err := m.await(ctx, e); err != nil {
		return err
	}
	return m.settle(ctx, e)
}

func (m *member) config(e *Embedded) *embed.Config {
	files := transport.TLSInfo{
		CertFile: m.TLS.CertFile, KeyFile: m.TLS.KeyFile, TrustedCAFile: m.TLS.CAFile, ClientCertAuth: true,
		// The address a member calls from need not be one that its name stands for: pods get new ones.
		SkipClientSANVerify: true,
	}
	config := e.config(m.Dir)
	config.Name = m.Name
	config.ListenPeerUrls = []url.URL{{Scheme: "https", Host: m.Listen}}
	config.ListenClientUrls = append(config.ListenClientUrls, url.URL{Scheme: "https", Host: m.ListenClient})
	config.AdvertisePeerUrls, config.AdvertiseClientUrls = []url.URL{parsed(m.self.PeerURL)}, []url.URL{parsed(m.self.ClientURL)}
	config.PeerTLSInfo, config.ClientTLSInfo = files, files
	config.TickMs, config.ElectionMs = heartbeatMs, electionMs
	config.MaxLearners = maxLearners
	config.InitialCluster = m.Name + "=" + m.self.PeerURL
	return config
}

// parsed is a URL that was made of an address.
func parsed(address string) url.URL {
	u, err := url.Parse(address)
	if err != nil {
		return url.URL{}
	}
	return *u
}

// enter prepares a member without data to make the cluster or to join it, as the record says.
func (m *member) enter(ctx context.Context, config *embed.Config) error {
	// Without the log of what was decided, the rest of the data is worth nothing to a member: it is what an attempt that
	// failed left.
	if err := os.RemoveAll(dataDir(m.Dir)); err != nil {
		return fmt.Errorf("removing data without a log: %w", err)
	}
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	state, err := m.Record.Update(request, func(s *State) {
		if s.Bootstrap.Name == "" && len(s.others(m.Name)) == 0 || m.alone(*s) {
			// What it made before, it has lost.
			*s = State{Bootstrap: m.self}
		}
	})
	if err != nil {
		return err
	}
	if m.alone(state) {
		m.Logger.Info("This member makes the etcd cluster", "member", m.Name)
		m.fresh = true
		config.ClusterState = embed.ClusterStateFlagNew
		// The IDs of cluster and member come from it, and none may be that of a member whose data was lost.
		config.InitialClusterToken = rand.Text()
		return nil
	}
	config.ClusterState = embed.ClusterStateFlagExisting
	config.InitialCluster, err = m.join(ctx, state)
	return err
}

// alone says whether the member is the one that makes the cluster, and nobody else has joined it.
func (m *member) alone(s State) bool {
	return s.Bootstrap.Name == m.Name && len(s.others(m.Name)) == 0
}

// await waits until the started member has caught up with what the cluster decided until then.
func (m *member) await(ctx context.Context, e *Embedded) error {
	server := e.server.Server
	ticker := time.NewTicker(tellEvery)
	defer ticker.Stop()
	for {
		select {
		case <-server.ReadyNotify():
			return nil
		case err := <-e.server.Err():
			return fmt.Errorf("the embedded etcd failed: %w", err)
		case <-server.StopNotify():
			return fmt.Errorf("%w: the cluster may have removed the member, see 'A member was removed' in docs/operations.md", ErrStopped)
		case <-ticker.C:
			if m.forgotten(ctx, e) {
				return m.discard(e)
			}
			m.Logger.Info("This member of etcd waits for the others: most of them must run", "member", m.Name,
				"members", names(e), "leader", server.Leader().String())
		case <-ctx.Done():
			return fmt.Errorf("%w: of members %v, most must run, see 'etcd has lost its quorum' in docs/operations.md: %w",
				ErrNoQuorum, names(e), context.Cause(ctx))
		}
	}
}

// settle has the record know the member, and the cluster take it for a full one.
func (m *member) settle(ctx context.Context, e *Embedded) error {
	server := e.server.Server
	cluster := server.Cluster().ID().String()
	joins := server.IsLearner() || m.fresh
	for {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		state, err := m.Record.Update(request, func(s *State) {
			if s.Cluster != "" && s.Cluster != cluster {
				return
			}
			if s.Cluster == "" && s.Bootstrap.Name != m.Name {
				// Who has data comes before who only meant to make some.
				s.Bootstrap = m.self
			}
			s.Cluster = cluster
			s.join(m.self)
		})
		cancel()
		if err == nil && state.Cluster != cluster {
			if m.fresh {
				m.fresh = false
				return m.discard(e)
			}
			return fmt.Errorf("%w: %s instead of %s, see 'The record is of another cluster' in docs/operations.md",
				ErrOtherCluster, cluster, state.Cluster)
		}
		if err == nil {
			break
		}
		// A member that the others know needs no record to go on. One that they do not may only become one of those who decide
		// when whoever comes later knows that there is another than the one who made the cluster.
		if !joins {
			m.Logger.Error(err, "The record of etcd's members is left as it is", "member", m.Name)
			break
		}
		m.Logger.Info("This member of etcd waits for the record of members", "member", m.Name, "reason", err.Error())
		select {
		case <-ctx.Done():
			return err
		case <-time.After(retryEvery):
		}
	}
	if err := m.promote(ctx, e); err != nil {
		return err
	}
	if err := m.readdress(ctx, e); err != nil {
		return err
	}
	return remove(m.joining())
}

func remove(file string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// names are those of the members that the member knows.
func names(e *Embedded) []string {
	var all []string
	for _, known := range e.server.Server.Cluster().Members() {
		name := known.Name
		if name == "" {
			name = known.ID.String()
		}
		all = append(all, name)
	}
	return all
}

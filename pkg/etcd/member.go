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
	"google.golang.org/grpc"
)

const (
	// memberTimeout is the default time to wait for the other members.
	memberTimeout = 15 * time.Minute
	// retryEvery is the interval between attempts, logEvery the interval between log lines while waiting.
	retryEvery = time.Second
	logEvery   = 10 * time.Second
	// requestTimeout bounds each request to the other members and to the record.
	requestTimeout = 7 * time.Second
	// A member is considered down after ten missed heartbeats. Members share their machines with the load they serve.
	heartbeatMs, electionMs = 200, 2000
	// maxLearners lets several members join at the same time.
	maxLearners = 8
)

// ErrOtherCluster is returned if the data of a member belongs to a different cluster than the recorded one.
var ErrOtherCluster = errors.New("data directory belongs to a different etcd cluster")

// TLSFiles are the paths of the certificate that a member presents to the others, as server and as client, of its key, and of
// the authorities that signed the others' certificates. Certificate and key are read at each handshake, the authorities when
// the member starts.
type TLSFiles struct {
	CertFile, KeyFile, CAFile string
}

// MemberOptions describe a member of a cluster.
type MemberOptions struct {
	// Dir is the data directory. It is created with mode 0700.
	Dir string
	// Name is the permanent name of the member, such as the name of its Pod in a StatefulSet.
	Name string
	// PeerAddress is the host and port at which peers reach the member. Its certificate must be valid for the host.
	PeerAddress string
	// Listen and ListenClient are the IP addresses and ports on which it listens for peers and for their clients. Peers
	// reach the latter's port at the host of PeerAddress.
	Listen, ListenClient string
	TLS                  TLSFiles
	Record               Record
	// Timeout bounds the wait for the other members; 0 means 15 minutes.
	Timeout time.Duration
	Logger  logr.Logger
}

// member is an etcd member that is being started.
type member struct {
	MemberOptions
	self Peer
	// added is the member ID that the cluster assigned, and asked reports whether this process requested it. IDs that an
	// earlier process requested are not reused: the data stored under such an ID may be lost, and a member that forgets its
	// votes breaks the consensus.
	added uint64
	asked bool
	// fresh reports whether this process created the cluster.
	fresh bool
}

// StartMember runs a member of a cluster. It returns when the member participates in the cluster and has caught up. A member
// with data continues with it. Of the members without data, one creates the cluster (the first to register in the record), and
// the others join it, as does a member that lost its data. It waits for the others, and logs the reason, until the timeout or
// the end of ctx. Then its error wraps ErrNoQuorum if too few members run. It fails with ErrInUse when another process runs on
// the directory, and with ErrOtherCluster when the data does not belong to the recorded cluster.
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
	var logged time.Time
	for {
		err := m.start(ctx, e)
		if err == nil {
			e.reserve()
			m.Logger.Info("Started etcd member", "member", m.Name, "peer", m.self.PeerURL)
			return e, nil
		}
		e.halt()
		if errors.Is(err, ErrOtherCluster) || ctx.Err() != nil {
			return nil, fmt.Errorf("start etcd member '%s': %w", m.Name, err)
		}
		if time.Since(logged) >= logEvery {
			logged = time.Now()
			m.Logger.Info("Failed to start etcd member; retrying", "member", m.Name, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("start etcd member '%s': %w", m.Name, err)
		case <-time.After(retryEvery):
		}
	}
}

func newMember(o MemberOptions) (*member, error) {
	host, _, err := net.SplitHostPort(o.PeerAddress)
	if err != nil {
		return nil, fmt.Errorf("peer address of etcd member '%s': %w", o.Name, err)
	}
	_, port, err := net.SplitHostPort(o.ListenClient)
	if err != nil {
		return nil, fmt.Errorf("client address of etcd member '%s': %w", o.Name, err)
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

// hasLog reports whether a write-ahead log exists, which means that the member has data. If the directory cannot be read, it
// returns an error, because a member without a log discards its data.
func hasLog(dir string) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(dataDir(dir), "member", "wal"))
	if errors.Is(err, os.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find write-ahead log: %w", err)
	}
	return slices.ContainsFunc(entries, func(entry os.DirEntry) bool { return filepath.Ext(entry.Name()) == ".wal" }), nil
}

// start makes one attempt. After an error, e must be halted.
func (m *member) start(ctx context.Context, e *Embedded) error {
	var writes retrier
	config := m.config(e)
	config.GRPCAdditionalServerOptions = append(config.GRPCAdditionalServerOptions, grpc.ChainUnaryInterceptor(writes.intercept))
	if found, err := hasLog(m.Dir); err != nil {
		return err
	} else if !found {
		if err := m.enter(ctx, config); err != nil {
			return err
		}
	}
	var err error
	if e.server, err = embed.StartEtcd(config); err != nil {
		return fmt.Errorf("start etcd on %s: %w", config.Dir, err)
	}
	writes.server.Store(e.server.Server)
	if err := m.await(ctx, e); err != nil {
		return err
	}
	return m.settle(ctx, e)
}

func (m *member) config(e *Embedded) *embed.Config {
	files := transport.TLSInfo{
		CertFile: m.TLS.CertFile, KeyFile: m.TLS.KeyFile, TrustedCAFile: m.TLS.CAFile, ClientCertAuth: true,
		// The source address of a member may differ from the addresses of its name, because Pods get new addresses.
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

// parsed returns the URL of a valid address.
func parsed(address string) url.URL {
	u, err := url.Parse(address)
	if err != nil {
		return url.URL{}
	}
	return *u
}

// enter prepares a member without data to create or to join the cluster, depending on the record.
func (m *member) enter(ctx context.Context, config *embed.Config) error {
	// Without the write-ahead log, the remaining data is useless. It is left over from a failed attempt.
	if err := os.RemoveAll(dataDir(m.Dir)); err != nil {
		return fmt.Errorf("remove data without a write-ahead log: %w", err)
	}
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	state, err := m.Record.Update(request, func(s *State) {
		if s.Bootstrap.Name == "" && len(s.others(m.Name)) == 0 || m.alone(*s) {
			// The member lost the data of the cluster that it created before.
			*s = State{Bootstrap: m.self}
		}
	})
	if err != nil {
		return err
	}
	if m.alone(state) {
		m.Logger.Info("Creating etcd cluster", "member", m.Name)
		m.fresh = true
		config.ClusterState = embed.ClusterStateFlagNew
		// The IDs of cluster and member derive from it, and must differ from the IDs of a member whose data was lost.
		config.InitialClusterToken = rand.Text()
		return nil
	}
	config.ClusterState = embed.ClusterStateFlagExisting
	config.InitialCluster, err = m.join(ctx, state)
	return err
}

// alone reports whether the member created the cluster and no other member has joined it.
func (m *member) alone(s State) bool {
	return s.Bootstrap.Name == m.Name && len(s.others(m.Name)) == 0
}

// await waits until the started member has caught up with the cluster.
func (m *member) await(ctx context.Context, e *Embedded) error {
	server := e.server.Server
	ticker, retries := time.NewTicker(logEvery), time.NewTicker(retryEvery)
	defer ticker.Stop()
	defer retries.Stop()
	for {
		select {
		case <-server.ReadyNotify():
			return nil
		case err := <-e.server.Err():
			return fmt.Errorf("embedded etcd failed: %w", err)
		case <-server.StopNotify():
			return fmt.Errorf("%w: the cluster may have removed the member, see 'A member was removed' in docs/operations.md", ErrStopped)
		case <-retries.C:
			if err := m.advance(ctx, e); err != nil {
				m.Logger.Info("Failed to write an entry for a member with a snapshot; retrying", "member", m.Name, "reason", err.Error())
			}
		case <-ticker.C:
			if m.forgotten(ctx, e) {
				return m.discard(e)
			}
			m.Logger.Info("Waiting for a quorum of etcd members", "member", m.Name,
				"members", names(e), "leader", server.Leader().String())
		case <-ctx.Done():
			return fmt.Errorf("%w: a majority of members %v must run, see 'etcd has lost its quorum' in docs/operations.md: %w",
				ErrNoQuorum, names(e), context.Cause(ctx))
		}
	}
}

// settle registers the member in the record and promotes it to a voting member.
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
				// A member with data takes precedence over a member that was about to create the cluster.
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
		// A voting member can continue without the record. A new member must be recorded before it votes: members that join
		// later must not assume that the bootstrap member is the only one.
		if !joins {
			m.Logger.Error(err, "Failed to update record of etcd members; continuing without", "member", m.Name)
			break
		}
		m.Logger.Info("Waiting for record of etcd members", "member", m.Name, "reason", err.Error())
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

// names returns the names of all known members.
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

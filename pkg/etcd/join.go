package etcd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdserver"
	"go.uber.org/zap"
)

const (
	// promoteEvery is the time between attempts to become a full member.
	promoteEvery = 300 * time.Millisecond
	// addTimeout bounds a request to join, which the cluster refuses for some seconds after another one joined.
	addTimeout = 3 * time.Second
)

// joining returns the path of a file that exists from the request to join the cluster until the member has joined. While it
// exists, the member has not voted in the cluster.
func (m *member) joining() string { return filepath.Join(m.Dir, "joining") }

// join adds the member to the cluster, and returns the members in the format of etcd's configuration.
func (m *member) join(ctx context.Context, state State) (string, error) {
	peers := state.others(m.Name)
	if len(peers) == 0 {
		peers = []Peer{state.Bootstrap}
	}
	client, err := m.dial(peers)
	if err != nil {
		return "", err
	}
	defer client.Close()
	members, err := m.list(ctx, client, peers)
	if err != nil {
		return "", err
	}
	known := false
	for _, other := range members {
		if other.Name != m.Name && !slices.Contains(other.PeerURLs, m.self.PeerURL) {
			continue
		}
		if m.asked && other.Name == "" {
			// A response to an earlier attempt of this process may have been lost.
			known, m.added = true, other.ID
			continue
		}
		m.Logger.Info("Removing etcd member whose data was lost", "member", m.Name, "id", types.ID(other.ID).String())
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		removed, err := client.MemberRemove(request, other.ID)
		cancel()
		if err != nil {
			return "", fmt.Errorf("remove member %x, whose data was lost: %w", other.ID, err)
		}
		members = removed.Members
	}
	if !known {
		if err := os.WriteFile(m.joining(), nil, 0o600); err != nil {
			return "", err
		}
		m.asked = true
		request, cancel := context.WithTimeout(ctx, addTimeout)
		added, err := client.MemberAddAsLearner(request, []string{m.self.PeerURL})
		cancel()
		if err != nil {
			return "", fmt.Errorf("join cluster of %s: %w", state.Bootstrap.Name, err)
		}
		m.added, members = added.Member.ID, added.Members
		m.Logger.Info("Joining etcd cluster", "member", m.Name, "id", types.ID(m.added).String())
	}
	return initialCluster(m.Name, m.added, members), nil
}

// initialCluster formats members as in etcd's configuration. Members that joined but never started have no name.
func initialCluster(name string, id uint64, members []*etcdserverpb.Member) string {
	var all []string
	for _, member := range members {
		called := member.Name
		switch {
		case member.ID == id:
			called = name
		case called == "":
			called = types.ID(member.ID).String()
		}
		for _, address := range member.PeerURLs {
			all = append(all, called+"="+address)
		}
	}
	return strings.Join(all, ",")
}

// dial returns a client of the given peers.
func (m *member) dial(peers []Peer) (*clientv3.Client, error) {
	endpoints := make([]string, 0, len(peers))
	for _, peer := range peers {
		endpoints = append(endpoints, peer.ClientURL)
	}
	config, err := transport.TLSInfo{CertFile: m.TLS.CertFile, KeyFile: m.TLS.KeyFile, TrustedCAFile: m.TLS.CAFile}.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("read certificate for peers: %w", err)
	}
	return clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config, Logger: zap.NewNop()})
}

// list returns the members according to the quorum.
func (m *member) list(ctx context.Context, client *clientv3.Client, peers []Peer) ([]*etcdserverpb.Member, error) {
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	agreed, err := client.MemberList(request)
	if err == nil {
		return agreed.Members, nil
	}
	var silent []string
	for _, peer := range peers {
		if m.ask(ctx, peer) != nil {
			silent = append(silent, peer.Name)
		}
	}
	if len(silent) == 0 {
		return nil, fmt.Errorf("list members: %w", err)
	}
	return nil, fmt.Errorf("%w: no response from %s, which have data; if their data is lost as well, see 'etcd has lost "+
		"its quorum' in docs/operations.md: %w", ErrNoQuorum, strings.Join(silent, " and "), err)
}

// ask returns nil if a member responds, whether or not it can reach the others.
func (m *member) ask(ctx context.Context, peer Peer) error {
	client, err := m.dial([]Peer{peer})
	if err != nil {
		return err
	}
	defer client.Close()
	request, cancel := context.WithTimeout(ctx, requestTimeout/2)
	defer cancel()
	_, err = client.Status(request, peer.ClientURL)
	return err
}

// voters returns the other voting members that a started member knows.
func voters(server *etcdserver.EtcdServer) (peers []Peer) {
	for _, other := range server.Cluster().Members() {
		if other.ID == server.MemberID() || len(other.ClientURLs) == 0 || other.IsLearner {
			continue
		}
		peers = append(peers, Peer{Name: other.Name, ClientURL: other.ClientURLs[0]})
	}
	return peers
}

// advance makes the cluster write an entry if the started member has a leader, and a snapshot without entries. etcd counts entries alone as
// applied, so that such a member seems to be behind by the index of the snapshot. From 5,000 on it rejects its own request to be ready,
// again and again, until it applies an entry: for as long as nothing is written to the cluster.
func (m *member) advance(ctx context.Context, e *Embedded) error {
	server := e.server.Server
	peers := voters(server)
	if server.Leader() == 0 || server.AppliedIndex() > 0 || server.CommittedIndex() == 0 || len(peers) == 0 {
		return nil
	}
	client, err := m.dial(peers)
	if err != nil {
		return err
	}
	defer client.Close()
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	// It has this address already.
	_, err = client.MemberUpdate(request, uint64(server.MemberID()), []string{m.self.PeerURL})
	return err
}

// promote promotes the member from learner to voting member as soon as it has caught up.
func (m *member) promote(ctx context.Context, e *Embedded) error {
	server := e.server.Server
	if !server.IsLearner() {
		return nil
	}
	client, err := m.dial(voters(server))
	if err != nil {
		return err
	}
	defer client.Close()
	var logged time.Time
	for server.IsLearner() {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		_, err := client.MemberPromote(request, uint64(server.MemberID()))
		cancel()
		if err != nil && !errors.Is(err, rpctypes.ErrMemberLearnerNotReady) && time.Since(logged) >= logEvery {
			logged = time.Now()
			m.Logger.Info("Waiting for promotion to voting etcd member", "member", m.Name, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("promote to voting member: %w", errors.Join(err, ctx.Err()))
		case <-server.StopNotify():
			return ErrStopped
		case <-time.After(promoteEvery):
		}
	}
	return nil
}

// readdress updates the peer address of the member in the cluster if it differs.
func (m *member) readdress(ctx context.Context, e *Embedded) error {
	server := e.server.Server
	known := server.Cluster().Member(server.MemberID())
	if known == nil || slices.Equal(known.PeerURLs, []string{m.self.PeerURL}) {
		return nil
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: e.Endpoints(), Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if _, err := client.MemberUpdate(request, uint64(server.MemberID()), []string{m.self.PeerURL}); err != nil {
		return fmt.Errorf("change address of member to %s: %w", m.self.PeerURL, err)
	}
	return nil
}

// forgotten reports whether the cluster does not list the member and the member has never voted in it. Then the cluster was
// recreated by a member that lost its data before another member had a copy.
func (m *member) forgotten(ctx context.Context, e *Embedded) bool {
	if _, err := os.Stat(m.joining()); err != nil {
		return false
	}
	request, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	state, err := m.Record.Update(request, func(*State) {})
	if err != nil || len(state.others(m.Name)) == 0 {
		return false
	}
	client, err := m.dial(state.others(m.Name))
	if err != nil {
		return false
	}
	defer client.Close()
	agreed, err := client.MemberList(request)
	if err != nil {
		return false
	}
	id := uint64(e.server.Server.MemberID())
	return !slices.ContainsFunc(agreed.Members, func(other *etcdserverpb.Member) bool { return other.ID == id })
}

// discard removes the data of a member of an obsolete cluster, so that the next attempt joins the current one.
func (m *member) discard(e *Embedded) error {
	e.halt()
	m.asked = false
	m.Logger.Info("Discarding data of etcd member; the cluster does not list the member", "member", m.Name)
	if err := os.RemoveAll(dataDir(m.Dir)); err != nil {
		return fmt.Errorf("remove data: %w", err)
	}
	return errors.New("removed data of a different etcd cluster")
}

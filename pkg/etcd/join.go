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
	"go.uber.org/zap"
)

const (
	// promoteEvery is the time between attempts to become a full member.
	promoteEvery = 300 * time.Millisecond
	// addTimeout bounds a request to join, which the cluster refuses for some seconds after another one joined.
	addTimeout = 3 * time.Second
)

// joining is the file that is there from when the member asks to join until it has. One that is there did not decide
// anything in the cluster yet.
func (m *member) joining() string { return filepath.Join(m.Dir, "joining") }

// join has the cluster expect the member, and returns its members as etcd's configuration has them.
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
			// The answer to an earlier attempt of this process may be lost.
			known, m.added = true, other.ID
			continue
		}
		m.Logger.Info("The member of etcd whose data is lost is removed", "member", m.Name, "id", types.ID(other.ID).String())
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		removed, err := client.MemberRemove(request, other.ID)
		cancel()
		if err != nil {
			return "", fmt.Errorf("removing member %x, whose data is lost: %w", other.ID, err)
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
			return "", fmt.Errorf("joining the cluster of %s: %w", state.Bootstrap.Name, err)
		}
		m.added, members = added.Member.ID, added.Members
		m.Logger.Info("This member joins the etcd cluster", "member", m.Name, "id", types.ID(m.added).String())
	}
	return initialCluster(m.Name, m.added, members), nil
}

// initialCluster is the form that etcd's configuration has members in. Those that joined and did not start have no name.
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

// dial returns a client of other members.
func (m *member) dial(peers []Peer) (*clientv3.Client, error) {
	endpoints := make([]string, 0, len(peers))
	for _, peer := range peers {
		endpoints = append(endpoints, peer.ClientURL)
	}
	config, err := transport.TLSInfo{CertFile: m.TLS.CertFile, KeyFile: m.TLS.KeyFile, TrustedCAFile: m.TLS.CAFile}.ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("reading the certificate for the other members: %w", err)
	}
	return clientv3.New(clientv3.Config{Endpoints: endpoints, TLS: config, Logger: zap.NewNop()})
}

// list returns the members as most of them agree on.
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
		return nil, fmt.Errorf("asking for the members of the cluster: %w", err)
	}
	return nil, fmt.Errorf("%w: of the members with data, %s do not answer; if their data is lost as well, see 'etcd has lost "+
		"its quorum' in docs/operations.md: %w", ErrNoQuorum, strings.Join(silent, " and "), err)
}

// ask returns nil if a member answers, whether or not it can reach the others.
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

// promote has the cluster count on a member that joined, as soon as it knows what the others do.
func (m *member) promote(ctx context.Context, e *Embedded) error {
	server := e.server.Server
	if !server.IsLearner() {
		return nil
	}
	var peers []Peer
	for _, other := range server.Cluster().Members() {
		if other.ID == server.MemberID() || len(other.ClientURLs) == 0 || other.IsLearner {
			continue
		}
		peers = append(peers, Peer{Name: other.Name, ClientURL: other.ClientURLs[0]})
	}
	client, err := m.dial(peers)
	if err != nil {
		return err
	}
	defer client.Close()
	var told time.Time
	for server.IsLearner() {
		request, cancel := context.WithTimeout(ctx, requestTimeout)
		_, err := client.MemberPromote(request, uint64(server.MemberID()))
		cancel()
		if err != nil && !errors.Is(err, rpctypes.ErrMemberLearnerNotReady) && time.Since(told) >= tellEvery {
			told = time.Now()
			m.Logger.Info("This member of etcd waits to be counted on", "member", m.Name, "reason", err.Error())
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("becoming a full member: %w", errors.Join(err, ctx.Err()))
		case <-server.StopNotify():
			return ErrStopped
		case <-time.After(promoteEvery):
		}
	}
	return nil
}

// readdress tells the cluster where the member is reached, if that is not what it knows.
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
		return fmt.Errorf("changing the address of the member to %s: %w", m.self.PeerURL, err)
	}
	return nil
}

// forgotten says whether the cluster does not know the member, which has never decided anything in it: one that was made
// anew by a member that lost its data before anybody else had it.
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

// discard removes the data of a member that is of a cluster without a future, so that the next attempt joins the other.
func (m *member) discard(e *Embedded) error {
	e.halt()
	m.asked = false
	m.Logger.Info("This member of etcd begins anew, as the cluster does not know it", "member", m.Name)
	if err := os.RemoveAll(dataDir(m.Dir)); err != nil {
		return fmt.Errorf("removing the data: %w", err)
	}
	return errors.New("the data was of another cluster, and is removed")
}

package etcd

import (
	"context"
	"errors"
	"fmt"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"k8s.io/component-base/metrics"
)

var (
	// ErrNoQuorum is returned if too few members of the cluster run to reach a quorum.
	ErrNoQuorum = errors.New("etcd has no quorum")
	// ErrNoSpace is returned if the database has reached its quota, so that etcd rejects writes.
	ErrNoSpace = errors.New("the database of etcd has reached its quota")
	// ErrStopped is returned if the member has stopped.
	ErrStopped = errors.New("the embedded etcd has stopped")
)

// Health returns the reasons why the member does not accept writes, from its local state and without a request. The errors
// wrap ErrStopped, ErrNoSpace or ErrNoQuorum.
func (e *Embedded) Health(context.Context) error {
	server := e.server.Server
	select {
	case <-server.StopNotify():
		return ErrStopped
	default:
	}
	var errs []error
	for _, alarm := range server.Alarms() {
		switch alarm.Alarm {
		case etcdserverpb.AlarmType_NOSPACE:
			errs = append(errs, fmt.Errorf("%w on member %x, see 'The database is full' in docs/operations.md", ErrNoSpace, alarm.MemberID))
		case etcdserverpb.AlarmType_CORRUPT:
			errs = append(errs, fmt.Errorf("etcd database is corrupt on member %x", alarm.MemberID))
		}
	}
	if server.Leader() == 0 {
		errs = append(errs, fmt.Errorf("%w: no leader elected", ErrNoQuorum))
	}
	return errors.Join(errs...)
}

// collector reads the metrics of the member when they are collected.
type collector struct {
	metrics.BaseStableCollector
	embedded *Embedded

	size, quota, alarms, leader, voters *metrics.Desc
}

// Metrics returns the size of the database and its quota in bytes, the number of alarms and of voting members, and whether a
// leader is elected.
func (e *Embedded) Metrics() metrics.StableCollector {
	desc := func(name, help string) *metrics.Desc {
		return metrics.NewDesc("knative_etcd_"+name, help, nil, nil, metrics.ALPHA, "")
	}
	return &collector{
		embedded: e,
		size:     desc("db_size_bytes", "Size of the embedded etcd's database, in bytes."),
		quota:    desc("db_quota_bytes", "Size of the embedded etcd's database at which it rejects writes, in bytes."),
		alarms:   desc("alarms", "Alarms of the embedded etcd, such as that its database has reached the quota."),
		leader:   desc("has_leader", "1 if the embedded etcd member has a leader, 0 if not."),
		voters:   desc("voting_members", "Voting members of the embedded etcd."),
	}
}

// DescribeWithStability implements metrics.StableCollector.
func (c *collector) DescribeWithStability(descriptions chan<- *metrics.Desc) {
	for _, d := range []*metrics.Desc{c.size, c.quota, c.alarms, c.leader, c.voters} {
		descriptions <- d
	}
}

// CollectWithStability implements metrics.StableCollector.
func (c *collector) CollectWithStability(values chan<- metrics.Metric) {
	server := c.embedded.server.Server
	leader := 0
	if server.Leader() != 0 {
		leader = 1
	}
	voters := 0
	for _, member := range server.Cluster().Members() {
		if !member.IsLearner {
			voters++
		}
	}
	for desc, value := range map[*metrics.Desc]float64{
		c.size:   float64(server.Backend().Size()),
		c.quota:  quotaBytes,
		c.alarms: float64(len(server.Alarms())),
		c.leader: float64(leader),
		c.voters: float64(voters),
	} {
		values <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value)
	}
}

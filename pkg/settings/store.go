package settings

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	eventingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/eventing/v1"
	messagingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/messaging/v1"
	servingv1 "github.com/knative-apiserver/knative-apiserver/pkg/apis/serving/v1"
)

// configMap is a ConfigMap that holds settings, and how it is read. parse writes to a value of its own, which
// is dropped if it fails; no two ConfigMaps write the same fields.
type configMap struct {
	name  string
	parse func(p *parser, s *Settings) error
}

// read writes the settings in data to s, and returns their faults.
func (c configMap) read(s *Settings, data map[string]string) error {
	return c.parse(newParser(c.name, data), s)
}

// configMaps are all ConfigMaps that are read.
func configMaps() []configMap {
	return []configMap{
		{AutoscalerConfigMapName, parseAutoscaler},
		{BrokerDefaultsConfigMapName, parseBrokerDefaults},
		{ChannelDefaultsConfigMapName, parseChannelDefaults},
		{DefaultsConfigMapName, parseDefaults},
		{DeploymentConfigMapName, parseDeployment},
		{DomainConfigMapName, parseDomain},
		{servingv1.FeaturesConfigMapName, parseFeatures},
		{GCConfigMapName, parseGC},
		{NetworkConfigMapName, parseNetwork},
	}
}

// Known reports whether a ConfigMap of this name holds settings, with or without effect.
func Known(name string) bool { return slices.Contains(Names(), name) }

// Names returns the names of the ConfigMaps of settings, sorted, with and without effect.
func Names() []string {
	var names []string
	for _, c := range configMaps() {
		names = append(names, c.name)
	}
	for _, i := range ignored() {
		names = append(names, i.configMap)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Store holds the settings in force. It may be used concurrently.
type Store struct {
	current atomic.Pointer[Settings]

	defaults Settings
	// mu guards what follows, and orders the changes of current.
	mu sync.Mutex
	// good is the data that each ConfigMap last had in which nothing was wrong.
	good        map[string]map[string]string
	subscribers []func()
}

// NewStore returns a Store with the settings that hold where no ConfigMap says otherwise.
func NewStore(defaults Settings) *Store {
	s := &Store{defaults: defaults, good: map[string]map[string]string{}}
	s.current.Store(&defaults)
	return s
}

// Get returns the settings in force. They are not to be changed.
func (s *Store) Get() *Settings { return s.current.Load() }

// API returns those settings in force that the API depends on.
func (s *Store) API() servingv1.Settings { return s.Get().API }

// Eventing returns those settings in force that new Brokers depend on.
func (s *Store) Eventing() eventingv1.Settings { return s.Get().Eventing }

// Messaging returns those settings in force that new Channels depend on.
func (s *Store) Messaging() messagingv1.Settings { return s.Get().Messaging }

// Subscribe has fn called after each change of the settings, one call at a time. fn must not block, nor
// change the settings.
func (s *Store) Subscribe(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, fn)
}

// Update takes over the data of some ConfigMaps, by name; nil data says that there is no such ConfigMap, so that
// its defaults hold. Where something is wrong with the data of a ConfigMap, that whole ConfigMap keeps what it
// had, and the error is in the result, by its name. Other ConfigMaps are ignored.
func (s *Store) Update(data map[string]map[string]string) map[string]error {
	s.mu.Lock()
	defer s.mu.Unlock()
	good, faults := maps.Clone(s.good), map[string]error{}
	for _, c := range configMaps() {
		values, named := data[c.name]
		switch {
		case !named:
			continue
		case values == nil:
			delete(good, c.name)
			continue
		}
		trial := s.defaults
		if err := c.read(&trial, values); err != nil {
			faults[c.name] = err
			continue
		}
		good[c.name] = maps.Clone(values)
	}
	if maps.EqualFunc(good, s.good, maps.Equal[map[string]string]) {
		return faults
	}
	next := s.defaults
	for _, c := range configMaps() {
		// This data was parsed before, when nothing was wrong with it.
		if err := c.read(&next, good[c.name]); err != nil {
			faults[c.name] = err
			return faults
		}
	}
	s.good = good
	s.current.Store(&next)
	for _, fn := range s.subscribers {
		fn()
	}
	return faults
}

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

// configMap describes a ConfigMap with settings. parse writes to a new value, which is dropped if it fails; no two ConfigMaps
// write the same fields.
type configMap struct {
	name  string
	parse func(p *parser, s *Settings) error
}

// read sets the values of data in s, and returns all errors.
func (c configMap) read(s *Settings, data map[string]string) error {
	return c.parse(newParser(c.name, data), s)
}

// configMaps returns all ConfigMaps that are read.
func configMaps() []configMap {
	return []configMap{
		{AutoscalerConfigMapName, parseAutoscaler},
		{BrokerConfigMapName, parseBrokerConfig},
		{BrokerDefaultsConfigMapName, parseBrokerDefaults},
		{CertManagerConfigMapName, parseCertManager},
		{ChannelDefaultsConfigMapName, parseChannelDefaults},
		{DefaultsConfigMapName, parseDefaults},
		{DeploymentConfigMapName, parseDeployment},
		{DomainConfigMapName, parseDomain},
		{servingv1.FeaturesConfigMapName, parseFeatures},
		{GCConfigMapName, parseGC},
		{NetworkConfigMapName, parseNetwork},
		{ObservabilityConfigMapName, parseObservability},
	}
}

// Known reports whether a ConfigMap of this name contains settings, with or without effect.
func Known(name string) bool { return slices.Contains(Names(), name) }

// Names returns the sorted names of the ConfigMaps with settings, including the ones without effect.
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

// Store holds the current settings. It is safe for concurrent use.
type Store struct {
	current atomic.Pointer[Settings]

	defaults Settings
	// mu guards the fields below, and orders the changes of current.
	mu sync.Mutex
	// good is the last valid data of each ConfigMap.
	good        map[string]map[string]string
	subscribers []func()
}

// NewStore returns a Store with the given default settings.
func NewStore(defaults Settings) *Store {
	s := &Store{defaults: defaults, good: map[string]map[string]string{}}
	s.current.Store(&defaults)
	return s
}

// Get returns the current settings. They must not be modified.
func (s *Store) Get() *Settings { return s.current.Load() }

// API returns the current settings of the API.
func (s *Store) API() servingv1.Settings { return s.Get().API }

// Eventing returns the current settings of the API of Eventing.
func (s *Store) Eventing() eventingv1.Settings {
	current := s.Get()
	eventing := current.Eventing
	eventing.OIDC = current.Senders.OIDC
	return eventing
}

// Messaging returns the current defaults of Channels.
func (s *Store) Messaging() messagingv1.Settings { return s.Get().Messaging }

// PodDefaults returns the current defaults of the Pods of a Revision with the given labels; see Settings.PodDefaults.
func (s *Store) PodDefaults(labels map[string]string) (runtimeClass string, spread bool) {
	return s.Get().PodDefaults(labels)
}

// Subscribe registers fn to be called after each change of the settings, not concurrently. fn must neither block nor change
// the settings.
func (s *Store) Subscribe(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.subscribers = append(s.subscribers, fn)
}

// Update applies the data of ConfigMaps, by name; nil means that the ConfigMap does not exist, so that its defaults apply. If
// the data of a ConfigMap is invalid, the whole ConfigMap keeps its last valid data, or a restriction of callers before any was valid, and
// the result contains the error by its name. Other ConfigMaps are ignored.
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
			if restricted := restricting(c.name, values); good[c.name] == nil && restricted != nil {
				good[c.name] = restricted
			}
			continue
		}
		good[c.name] = maps.Clone(values)
	}
	if maps.EqualFunc(good, s.good, maps.Equal[map[string]string]) {
		return faults
	}
	next := s.defaults
	for _, c := range configMaps() {
		// This data was valid when it was parsed before.
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

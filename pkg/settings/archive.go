package settings

import (
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/knative-apiserver/knative-apiserver/pkg/eventing"
)

// BrokerConfigMapName is the name of the ConfigMap to which spec.config of Brokers refers by default in Knative's releases. Its keys concern the
// Brokers that refer to it. Other ConfigMaps may have them, too.
const BrokerConfigMapName = "config-br-default-channel"

const (
	// KeyArchiveRetention is the age at which archived events are deleted, such as 24h. 0 or none disables the archive.
	KeyArchiveRetention = "archive-retention"
	// KeyArchiveMaxBytes bounds the archive of a Broker, such as 512Mi. None selects the limit of the namespace.
	KeyArchiveMaxBytes = "archive-max-bytes"

	// minArchiveRetention and minArchiveBytes are the least values, except for no archive.
	minArchiveRetention, minArchiveBytes = time.Minute, 1 << 20
)

// ParseArchive returns the archive of the Brokers that refer to a ConfigMap with this name and data, or nil without one.
func ParseArchive(name string, data map[string]string) (*eventing.Archive, error) {
	return parseArchive(newParser(name, data))
}

func parseArchive(p *parser) (*eventing.Archive, error) {
	var archive eventing.Archive
	read(p, &archive.Retention, period(func(d time.Duration) bool { return d == 0 || d >= minArchiveRetention }),
		"0 or a duration of at least 1m, such as 24h", KeyArchiveRetention)
	read(p, &archive.MaxBytes, func(value string) (int64, bool) {
		quantity, err := resource.ParseQuantity(value)
		return quantity.Value(), err == nil && quantity.Value() >= minArchiveBytes
	}, "a number of bytes of at least 1Mi, such as 512Mi", KeyArchiveMaxBytes)
	_, retained := p.data[KeyArchiveRetention]
	_, sized := p.data[KeyArchiveMaxBytes]
	p.check(!sized || retained, KeyArchiveMaxBytes, "have '%s' beside it", KeyArchiveRetention)
	if err := p.done(); err != nil || archive.Retention == 0 {
		return nil, err
	}
	return &archive, nil
}

// parseBrokerConfig checks config-br-default-channel. The controller of Brokers reads it.
func parseBrokerConfig(p *parser, _ *Settings) error {
	_, err := parseArchive(p)
	return err
}

// Package layout defines how the event log is stored in JetStream: the names of streams, subjects and consumers, the
// metadata of streams, and the encoding of segments.
package layout

import "strings"

// Keys of the metadata of streams.
const (
	InstallationKey = "knative-installation"
	IDKey           = "knative-uid"
	TenantKey       = "knative-tenant"
	// RetainedKey has the ID of a retained stream.
	RetainedKey = "knative-retained"
)

const (
	sharedQueue = "shared"
	// queueInfix separates the prefix of a stream's subjects from the name of a queue other than the shared one.
	queueInfix = "queue."
)

// Subjects matches the subjects of all streams of an installation.
func Subjects(installation string) string { return "KN." + installation + ".>" }

// RetainedSubjects matches the subjects of all retained streams of an installation.
func RetainedSubjects(installation string) string { return "KNR." + installation + ".>" }

// Stream derives the names of one stream: of its ID within an installation.
type Stream struct {
	// ID is a UID, unless the stream is retained.
	Installation, ID string
	// Retained streams have names of their own, so that what handles all streams of events finds none of them.
	Retained bool
}

// Name is the stream's name in JetStream.
func (s Stream) Name() string {
	if s.Retained {
		return "KNR_" + s.Installation + "_" + s.ID
	}
	return "KN_" + s.Installation + "_" + s.ID
}

// Subjects matches the subjects of all queues.
func (s Stream) Subjects() string { return s.prefix() + ">" }

// Subject is the subject of a queue's messages. The shared queue's name is empty, others are UIDs.
func (s Stream) Subject(queue string) string {
	if queue == "" {
		return s.prefix() + sharedQueue
	}
	return s.prefix() + queueInfix + queue
}

// Queue is the inverse of Subject.
func (s Stream) Queue(subject string) string {
	// The subject of the shared queue has no infix.
	_, queue, _ := strings.Cut(subject, s.prefix()+queueInfix)
	return queue
}

func (s Stream) prefix() string {
	if s.Retained {
		return "KNR." + s.Installation + "." + s.ID + "."
	}
	return "KN." + s.Installation + "." + s.ID + "."
}

// Consumer is the name of a queue's durable consumer.
func Consumer(queue string) string {
	if queue == "" {
		return sharedQueue
	}
	return "queue_" + queue
}

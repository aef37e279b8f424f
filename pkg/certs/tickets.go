package certs

import (
	"crypto/rand"
	"encoding/json"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ticketPeriod is the time for which a key encrypts the tickets of TLS sessions. A ticket can be decrypted for as long again.
const ticketPeriod = 12 * time.Hour

// ticketsKey is the key of the Secret with the tickets in JSON.
const ticketsKey = "session-tickets.json"

// ticketKeySize is the size of a key in bytes.
const ticketKeySize = 32

// tickets are the keys that encrypt the tickets of TLS sessions (RFC 5077), the same for all gateways. Immutable. They are random and not derived from the
// key of the authority: a key that is deleted cannot decrypt a recorded session.
type tickets struct {
	// Since is the time since which the first key encrypts.
	Since time.Time `json:"since"`
	// Keys decrypt: the current key, the next one, which gateways thus know before the first of them uses it, and the previous one.
	Keys [][]byte `json:"keys"`
}

// newTickets returns new keys.
func newTickets(now time.Time) *tickets {
	return &tickets{Since: now, Keys: [][]byte{newTicketKey(), newTicketKey()}}
}

func newTicketKey() []byte {
	key := make([]byte, ticketKeySize)
	rand.Read(key) // It always succeeds.
	return key
}

// readTickets returns the keys in a Secret, or nil without valid ones.
func readTickets(secret *corev1.Secret) *tickets {
	t := &tickets{}
	if err := json.Unmarshal(secret.Data[ticketsKey], t); err != nil || len(t.Keys) < 2 || len(t.Keys) > 3 {
		return nil
	}
	for _, key := range t.Keys {
		if len(key) != ticketKeySize {
			return nil
		}
	}
	return t
}

// encode returns the keys as readTickets reads them.
func (t *tickets) encode() []byte {
	content, err := json.Marshal(t)
	if err != nil {
		panic(err) // A time after the year 9999.
	}
	return content
}

// due returns the time to replace the keys, at the latest now if the clock was changed.
func (t *tickets) due(now time.Time) time.Time {
	if t == nil || t.Since.After(now.Add(ticketPeriod)) {
		return now
	}
	return t.Since.Add(ticketPeriod)
}

// next returns the keys that follow t, which may be nil.
func (t *tickets) next(now time.Time) *tickets {
	if t == nil {
		return newTickets(now)
	}
	return &tickets{Since: now, Keys: [][]byte{t.Keys[1], newTicketKey(), t.Keys[0]}}
}

// keys returns the keys, the current one first. It returns none for nil.
func (t *tickets) keys() [][ticketKeySize]byte {
	if t == nil {
		return nil
	}
	keys := make([][ticketKeySize]byte, len(t.Keys))
	for i, key := range t.Keys {
		copy(keys[i][:], key)
	}
	return keys
}

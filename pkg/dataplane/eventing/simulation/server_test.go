package simulation

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// serverAddress is the address of the NATS server.
const serverAddress = "192.0.2.1:4222"

// removalsAtRisk is the time after which the removal of a message survives a crash. The server does not sync removals.
const removalsAtRisk = 200 * time.Millisecond

// natsServer speaks the protocol of NATS. A message is stored, acknowledged and delivered once the simulated disk has synced it.
type natsServer struct {
	network *network

	mu sync.Mutex
	// mu guards the fields below.
	streams map[string]*storedStream
	clients []*natsClient
	// timers deliver from consumers when something becomes due.
	timers map[*storedConsumer]*time.Timer
	// run counts the starts: writes of an earlier run are lost. synced is when the last write will be durable.
	run    int
	synced time.Time
	// full makes the store reject messages, diskFails makes syncs fail.
	full, diskFails bool
	// failures is the number of writes that fail next.
	failures int
	// removed are the recently removed messages.
	removed []removal
	// batches are the messages of atomic batches that were not committed.
	batches map[string][]*message
	// writes counts the messages that became durable.
	writes int
}

type removal struct {
	at      time.Time
	stream  string
	message *message
}

func newNATSServer(n *network) *natsServer {
	s := &natsServer{network: n, streams: map[string]*storedStream{}, timers: map[*storedConsumer]*time.Timer{}}
	s.start()
	return s
}

func (s *natsServer) start() {
	s.mu.Lock()
	s.run++
	s.batches = map[string][]*message{}
	s.mu.Unlock()
	s.network.listen(serverAddress, s.serve)
}

// crash ends the server like a power failure: unsynced messages are lost, and recent removals may be.
func (s *natsServer) crash() {
	s.network.close(serverAddress)
	s.network.reset(serverAddress)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.run++
	s.synced = time.Time{}
	s.clients = nil
	now := time.Now()
	for _, r := range s.removed {
		stream := s.streams[r.stream]
		if stream == nil || now.Sub(r.at) > removalsAtRisk || s.network.below(2, "removal", r.message.sequence) == 0 {
			continue
		}
		i, _ := stream.find(r.message.sequence)
		stream.messages = slices.Insert(stream.messages, i, r.message)
		stream.bytes += r.message.size()
		for _, c := range stream.consumers {
			if c.config.FilterSubject == r.message.subject {
				c.pending[r.message.sequence] = now.Add(c.config.AckWait)
			}
		}
	}
	s.removed = nil
	for c, timer := range s.timers {
		timer.Stop()
		c.requests = nil
	}
	clear(s.timers)
}

// natsClient is a connection with its subscriptions: their subjects by ID.
type natsClient struct {
	conn          net.Conn
	subscriptions map[string]string
}

// serve handles a connection until it ends.
func (s *natsServer) serve(c net.Conn) {
	defer c.Close()
	client := &natsClient{conn: c, subscriptions: map[string]string{}}
	s.mu.Lock()
	s.clients = append(s.clients, client)
	s.mu.Unlock()
	client.send(`INFO {"server_id":"simulation","version":"2.12.0","proto":1,"headers":true,"max_payload":16777216,"jetstream":true,"client_id":1}`, nil)
	input := bufio.NewReader(c)
	for {
		line, err := input.ReadString('\n')
		if err != nil {
			break
		}
		operation, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		arguments := strings.Fields(rest)
		switch strings.ToUpper(operation) {
		case "PING":
			client.send("PONG", nil)
			// The connection is established.
			c.(*conn).instant.Store(false)
			c.(*conn).peer.instant.Store(false)
		case "SUB":
			s.subscribe(client, arguments[len(arguments)-1], arguments[0])
		case "UNSUB":
			if len(arguments) == 1 {
				s.subscribe(client, arguments[0], "")
			}
		case "PUB", "HPUB":
			size, _ := strconv.Atoi(arguments[len(arguments)-1])
			data := make([]byte, size+2)
			if _, err := io.ReadFull(input, data); err != nil {
				break
			}
			reply, header := "", 0
			if operation == "HPUB" {
				header, _ = strconv.Atoi(arguments[len(arguments)-2])
				arguments = slices.Delete(arguments, len(arguments)-2, len(arguments)-1)
			}
			if len(arguments) == 3 {
				reply = arguments[1]
			}
			s.publish(arguments[0], reply, string(data[:header]), data[header:size])
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clients = slices.DeleteFunc(s.clients, func(other *natsClient) bool { return other == client })
}

// send sends a line, and a payload unless it is nil.
func (c *natsClient) send(line string, payload []byte) {
	data := append([]byte(line), "\r\n"...)
	if payload != nil {
		data = append(append(data, payload...), "\r\n"...)
	}
	// The reader notices that the connection ended.
	_, _ = c.conn.Write(data)
}

// subscribe adds a subscription, or removes it if subject is empty.
func (s *natsServer) subscribe(c *natsClient, id, subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if subject == "" {
		delete(c.subscriptions, id)
		return
	}
	c.subscriptions[id] = subject
}

// matches reports whether a subscription is for a subject. It may end with a wildcard.
func matches(subscription, subject string) bool {
	prefix, wildcard := strings.CutSuffix(subscription, "*")
	if !wildcard {
		prefix, wildcard = strings.CutSuffix(subscription, ">")
	}
	return subscription == subject || wildcard && strings.HasPrefix(subject, prefix)
}

// interested returns the subscription for a subject. mu is held.
func (s *natsServer) interested(subject string) (c *natsClient, id string) {
	for _, c := range s.clients {
		for id, subscription := range c.subscriptions {
			if matches(subscription, subject) {
				return c, id
			}
		}
	}
	return nil, ""
}

// send sends a message to the client that subscribed to its subject. mu is held.
func (s *natsServer) send(to, reply, status string, data []byte) {
	c, id := s.interested(to)
	if c == nil {
		return
	}
	head := strings.TrimSuffix(to+" "+id+" "+reply, " ")
	if status != "" {
		header := "NATS/1.0 " + status + "\r\n\r\n"
		c.send(fmt.Sprintf("HMSG %s %d %d", head, len(header), len(header)), []byte(header))
		return
	}
	if data == nil {
		data = []byte{}
	}
	c.send(fmt.Sprintf("MSG %s %d", head, len(data)), data)
}

func (s *natsServer) respond(to string, response any) {
	data, err := json.Marshal(response)
	if err != nil {
		panic(err)
	}
	s.send(to, "", "", data)
}

// publish handles a message of a client.
func (s *natsServer) publish(subject, reply, header string, data []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case strings.HasPrefix(subject, "$JS.ACK."):
		s.acknowledge(strings.Split(subject, "."), string(data))
	case strings.HasPrefix(subject, "$JS.API."):
		s.api(strings.SplitN(strings.TrimPrefix(subject, "$JS.API."), ".", 5), reply, data)
	default:
		s.write(subject, reply, header, data)
	}
}

// write stores a message, or gathers it for an atomic batch. mu is held.
func (s *natsServer) write(subject, reply, header string, data []byte) {
	stream := s.streamOf(subject)
	if stream == nil {
		s.send(reply, "", "503", nil)
		return
	}
	all := []*message{{subject: subject, header: header, data: data}}
	if batch := value(header, "Nats-Batch-Id"); batch != "" {
		all = append(s.batches[batch], all...)
		s.batches[batch] = all
		if value(header, "Nats-Batch-Commit") == "" {
			return
		}
		delete(s.batches, batch)
	}
	// The messages of a stream are written in order.
	now := time.Now()
	if s.synced.Before(now) {
		s.synced = now
	}
	s.synced = s.synced.Add(s.network.between(100*time.Microsecond, 3*time.Millisecond, "sync", now.Sub(s.network.start), len(data)))
	run := s.run
	time.AfterFunc(time.Until(s.synced), func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.run == run {
			s.durable(stream, reply, all)
		}
	})
}

// durable stores synced messages, and acknowledges them. mu is held.
func (s *natsServer) durable(stream *storedStream, reply string, all []*message) {
	name := stream.config.Name
	if s.streams[name] != stream {
		return
	}
	failed := (*failure)(nil)
	switch {
	case s.failures > 0:
		s.failures--
		failed = errDisk
	case s.diskFails:
		failed = errDisk
	case s.full:
		failed = errFull
	default:
		failed = stream.store(time.Now(), all...)
	}
	if failed != nil {
		s.respond(reply, map[string]any{"error": failed, "stream": name, "seq": 0})
		return
	}
	s.writes += len(all)
	s.respond(reply, map[string]any{"stream": name, "seq": stream.last})
	for _, durable := range slices.Sorted(maps.Keys(stream.consumers)) {
		s.deliver(stream.consumers[durable])
	}
}

// value returns a value of a header.
func value(header, name string) string {
	_, rest, _ := strings.Cut(header, name+": ")
	value, _, _ := strings.Cut(rest, "\r\n")
	return value
}

// streamOf returns the stream of a subject. mu is held.
func (s *natsServer) streamOf(subject string) *storedStream {
	for _, stream := range s.streams {
		if matches(stream.config.Subjects[0], subject) {
			return stream
		}
	}
	return nil
}

// deliver sends the due messages of a consumer, and schedules the next call. mu is held.
func (s *natsServer) deliver(c *storedConsumer) {
	// Requests of connections that ended have no subscription.
	c.requests = slices.DeleteFunc(c.requests, func(r *pull) bool { c, _ := s.interested(r.reply); return c == nil })
	for _, d := range c.deliver(time.Now()) {
		if d.message == nil {
			s.send(d.to, "", d.status, nil)
		} else {
			s.send(d.to, d.reply, "", d.message.data)
		}
	}
	if timer := s.timers[c]; timer != nil {
		timer.Stop()
	}
	if at := c.wake(); !at.IsZero() {
		s.timers[c] = time.AfterFunc(max(time.Until(at), time.Microsecond), func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if c.stream.consumers[c.config.Durable] == c {
				s.deliver(c)
			}
		})
	}
}

// consumer returns a consumer that exists, or nil. mu is held.
func (s *natsServer) consumer(stream, durable string) *storedConsumer {
	if found := s.streams[stream]; found != nil && found.consumers[durable] != nil && !found.consumers[durable].inactive(time.Now()) {
		return found.consumers[durable]
	}
	return nil
}

// risk records that messages are removed from a stream. mu is held.
func (s *natsServer) risk(stream string, messages ...*message) {
	now := time.Now()
	s.removed = slices.DeleteFunc(s.removed, func(r removal) bool { return now.Sub(r.at) > removalsAtRisk })
	for _, m := range messages {
		s.removed = append(s.removed, removal{now, stream, m})
	}
}

// acknowledge handles $JS.ACK.<stream>.<consumer>.<deliveries>.<sequence>.<...>. mu is held.
func (s *natsServer) acknowledge(subject []string, data string) {
	c := s.consumer(subject[2], subject[3])
	sequence, err := strconv.ParseUint(subject[5], 10, 64)
	if c == nil || err != nil {
		return
	}
	now := time.Now()
	if i, found := c.stream.find(sequence); found && data == "+ACK" && sequence < c.next {
		s.risk(subject[2], c.stream.messages[i])
	}
	c.acknowledge(sequence, data, now)
	s.deliver(c)
}

// info describes a stream.
func info(stream *storedStream) *jetstream.StreamInfo {
	return &jetstream.StreamInfo{Config: stream.config, Created: stream.created, State: jetstream.StreamState{
		Msgs: uint64(len(stream.messages)), Bytes: uint64(stream.bytes), LastSeq: stream.last, Consumers: len(stream.consumers),
	}}
}

// api handles requests to JetStream's API: <kind>.<verb>.<stream>.<...>. mu is held.
func (s *natsServer) api(request []string, reply string, data []byte) {
	if request[0] == "STREAM" {
		s.streamAPI(request, reply, data)
		return
	}
	if request[1] == "MSG" {
		// MSG.NEXT.<stream>.<consumer>
		if c := s.consumer(request[3], request[4]); c != nil {
			c.request(reply, data, time.Now())
			s.deliver(c)
		} else {
			s.send(reply, "", "503", nil)
		}
		return
	}
	stream := s.streams[request[2]]
	if stream == nil {
		s.respond(reply, map[string]any{"error": errNoStream})
		return
	}
	if request[1] == "DELETE" {
		c := stream.consumers[request[3]]
		if c == nil {
			s.respond(reply, map[string]any{"error": errNoConsumer})
			return
		}
		for _, r := range c.requests {
			s.send(r.reply, "", "409 Consumer Deleted", nil)
		}
		c.requests = nil
		delete(stream.consumers, request[3])
		s.respond(reply, map[string]any{"success": true})
		return
	}
	var create struct {
		Config jetstream.ConsumerConfig `json:"config"`
	}
	if err := json.Unmarshal(data, &create); err != nil {
		panic(err)
	}
	c := stream.configure(create.Config, time.Now())
	s.respond(reply, jetstream.ConsumerInfo{Stream: request[2], Name: create.Config.Durable, Config: create.Config})
	s.deliver(c)
}

// streamAPI handles requests that concern streams. mu is held.
func (s *natsServer) streamAPI(request []string, reply string, data []byte) {
	if request[1] == "LIST" {
		var all []*jetstream.StreamInfo
		for _, name := range slices.Sorted(maps.Keys(s.streams)) {
			all = append(all, info(s.streams[name]))
		}
		s.respond(reply, map[string]any{"total": len(all), "limit": 256, "offset": 0, "streams": all})
		return
	}
	name := request[2]
	stream := s.streams[name]
	if stream == nil && request[1] != "CREATE" {
		s.respond(reply, map[string]any{"error": errNoStream})
		return
	}
	type described struct {
		*jetstream.StreamInfo
		Total int `json:"total"`
	}
	switch request[1] {
	case "CREATE", "UPDATE":
		var config jetstream.StreamConfig
		if err := json.Unmarshal(data, &config); err != nil {
			panic(err)
		}
		if stream == nil {
			stream = newStoredStream(config, time.Now())
			s.streams[name] = stream
		}
		stream.config = config
		s.respond(reply, described{StreamInfo: info(stream)})
	case "INFO":
		found := info(stream)
		if strings.Contains(string(data), "subjects_filter") {
			found.State.Subjects = stream.subjects()
		}
		s.respond(reply, described{found, len(found.State.Subjects)})
	case "DELETE":
		delete(s.streams, name)
		for _, c := range stream.consumers {
			for _, r := range c.requests {
				s.send(r.reply, "", "409 Consumer Deleted", nil)
			}
			c.requests = nil
		}
		s.respond(reply, map[string]any{"success": true})
	case "PURGE":
		var purge struct {
			Filter string `json:"filter"`
		}
		if len(data) > 0 {
			if err := json.Unmarshal(data, &purge); err != nil {
				panic(err)
			}
		}
		purged := stream.purge(purge.Filter)
		s.risk(name, purged...)
		s.respond(reply, map[string]any{"success": true, "purged": len(purged)})
	}
}

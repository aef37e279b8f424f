// Package simulation runs the broker, the delivery of events and the client of the event log in virtual time, with random
// faults that a seed determines. It has tests only.
//
// All of ingress, streams, broker, delivery, logqueue, sender, eventlog, eventlog/commit, eventlog/consume and the NATS client
// are the real packages. Simulated are the network (network_test.go) and the NATS servers (jetstream_test.go for what they
// store and deliver, server_test.go for their protocol and their disk). TestModel compares these with a real server.
package simulation

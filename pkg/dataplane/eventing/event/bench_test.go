package event

import (
	"bytes"
	"net/http"
	"testing"
)

func benchHeader() http.Header {
	return binaryHeader("content-type", "application/json", "ce-time", "2026-01-02T03:04:05.678Z", "ce-subject", "a", "ce-ext", "x",
		"user-agent", "x", "content-length", "1024", "traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
}

func BenchmarkBinaryToLog(b *testing.B) {
	header, body := benchHeader(), bytes.Repeat([]byte("x"), 1024)
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		events, err := FromRequest(header, body)
		if err != nil {
			b.Fatal(err)
		}
		buf = events[0].Append(buf[:0])
	}
}

func BenchmarkStructuredToLog(b *testing.B) {
	header := headerOf("content-type", "application/cloudevents+json")
	body := []byte(`{` + minimal + `,"data":"` + string(bytes.Repeat([]byte("x"), 1024)) + `"}`)
	buf := make([]byte, 0, 4096)
	b.ReportAllocs()
	for b.Loop() {
		events, err := FromRequest(header, body)
		if err != nil {
			b.Fatal(err)
		}
		buf = events[0].Append(buf[:0])
	}
}

func BenchmarkLogToBinary(b *testing.B) {
	events, err := FromRequest(benchHeader(), bytes.Repeat([]byte("x"), 1024))
	if err != nil {
		b.Fatal(err)
	}
	encoded := events[0].Append(nil)
	b.ReportAllocs()
	for b.Loop() {
		e, err := Decode(encoded)
		if err != nil {
			b.Fatal(err)
		}
		header := make(http.Header, 16)
		e.WriteBinary(header)
		e.WriteHeaders(header)
	}
}

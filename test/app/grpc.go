package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// gRPC is spoken here without its library, which would take longer to start than all the rest. Any service's
// messages are sent back as they are, so that clients may use what types they like:
//
//	/grpc.health.v1.Health/Check   SERVING
//	*/Fail                         status 13 (INTERNAL), as trailers alone
//	everything else                each message is sent back at once, in the order they come
//
// The request's metadata x-echo comes back as a header and as the trailer x-echo-trailer; the trailer
// x-messages counts the messages.
const (
	grpcContentType  = "application/grpc"
	grpcMessageLimit = 64 << 20
	grpcOK           = 0
	grpcExhausted    = 8
	grpcInternal     = 13
)

func isGRPC(r *http.Request) bool {
	return r.ProtoMajor == 2 && strings.HasPrefix(r.Header.Get("Content-Type"), grpcContentType)
}

func serveGRPC(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("Content-Type", grpcContentType)
	if echo := r.Header.Get("X-Echo"); echo != "" {
		header.Set("X-Echo", echo)
		header.Set(http.TrailerPrefix+"X-Echo-Trailer", echo)
	}
	if strings.HasSuffix(r.URL.Path, "/Fail") {
		endGRPC(w, grpcInternal, "failing, as asked for")
		return
	}
	w.WriteHeader(http.StatusOK)
	out := http.NewResponseController(w)
	if out.Flush() != nil {
		return
	}
	health := r.URL.Path == "/grpc.health.v1.Health/Check"
	for messages := 0; ; messages++ {
		frame, err := readFrame(r.Body)
		switch {
		case errors.Is(err, io.EOF):
			header.Set(http.TrailerPrefix+"X-Messages", strconv.Itoa(messages))
			endGRPC(w, grpcOK, "")
			return
		case err != nil:
			endGRPC(w, grpcInternal, err.Error())
			return
		case frame == nil:
			endGRPC(w, grpcExhausted, "the message is too large")
			return
		case health:
			// Field 1, the status, is 1: SERVING.
			frame = []byte{0, 0, 0, 0, 2, 8, 1}
		}
		if _, err := w.Write(frame); err != nil || out.Flush() != nil {
			return
		}
	}
}

// readFrame reads one message with its head of five bytes: whether it is compressed, and its length. It
// returns io.EOF where there is no further one, and nil for one that is too large.
func readFrame(body io.Reader) ([]byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(body, head[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[1:])
	if length > grpcMessageLimit {
		return nil, nil
	}
	frame := make([]byte, len(head)+int(length))
	copy(frame, head[:])
	_, err := io.ReadFull(body, frame[len(head):])
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return frame, err
}

func endGRPC(w http.ResponseWriter, code int, message string) {
	w.Header().Set(http.TrailerPrefix+"Grpc-Status", strconv.Itoa(code))
	w.Header().Set(http.TrailerPrefix+"Grpc-Message", message)
}

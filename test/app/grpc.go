package main

import (
	"encoding/binary"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
)

// gRPC is implemented here without its library, which would start slower than everything else. Messages of any service are
// echoed unchanged, so clients may use any types:
//
//	/grpc.health.v1.Health/Check   SERVING
//	*/Fail                         status 13 (INTERNAL), as trailers alone
//	everything else                each message is echoed at once, in order
//
// The request metadata x-echo is returned as a header and as the trailer x-echo-trailer; the trailer x-messages is the number
// of messages.
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

// readFrame reads one message with its prefix of five bytes: whether it is compressed, and its length. It returns io.EOF at the
// end, and nil for a message that is too large.
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

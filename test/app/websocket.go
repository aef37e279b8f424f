package main

import (
	"net/http"
	"time"

	"github.com/gorilla/websocket"
)

// webSocket echoes messages until the client closes, or with the query parameter goodbye until SIGTERM: then with status 1001.
func (a *app) webSocket(w http.ResponseWriter, r *http.Request) {
	upgrader := websocket.Upgrader{CheckOrigin: func(*http.Request) bool { return true }}
	conn, err := upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	defer conn.Close()
	if r.URL.Query().Has("goodbye") {
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			select {
			case <-a.ending:
				goodbye := websocket.FormatCloseMessage(websocket.CloseGoingAway, "SIGTERM")
				_ = conn.WriteControl(websocket.CloseMessage, goodbye, time.Now().Add(time.Minute))
			case <-ended:
			}
		}()
	}
	for {
		kind, message, err := conn.ReadMessage()
		if err != nil || conn.WriteMessage(kind, message) != nil {
			return
		}
	}
}

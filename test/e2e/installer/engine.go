package installer

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// engine is what the agent takes for Docker: it has every image, and what a container does is the installer's to do. It
// knows one container.
type engine struct {
	created chan []string // the environment of the container that was made
	ended   chan struct{} // closed when the container has ended
	status  int
	once    sync.Once
}

func newEngine() *engine {
	return &engine{created: make(chan []string, 1), ended: make(chan struct{})}
}

// exit ends the container. The first time counts.
func (e *engine) exit(status int) {
	e.once.Do(func() {
		e.status = status
		close(e.ended)
	})
}

// handler answers the calls of the Docker Engine API that the agent makes for an action, in their order.
func (e *engine) handler() http.Handler {
	mux := http.NewServeMux()
	done := func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }
	mux.HandleFunc("/_ping", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Api-Version", "1.48")
	})
	mux.HandleFunc("POST /{version}/images/create", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, `{"status": "the installer has it"}`)
	})
	mux.HandleFunc("POST /{version}/containers/create", e.create)
	mux.HandleFunc("POST /{version}/containers/{id}/wait", e.wait)
	mux.HandleFunc("POST /{version}/containers/{id}/start", done)
	mux.HandleFunc("POST /{version}/containers/{id}/attach", attach)
	mux.HandleFunc("POST /{version}/containers/{id}/stop", done)
	mux.HandleFunc("DELETE /{version}/containers/{id}", done)
	return mux
}

func (e *engine) create(w http.ResponseWriter, r *http.Request) {
	var container struct{ Env []string }
	if err := json.NewDecoder(r.Body).Decode(&container); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	select {
	case e.created <- container.Env:
	default:
		http.Error(w, `{"message": "there is a container already"}`, http.StatusConflict)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	fmt.Fprintln(w, `{"Id": "action", "Warnings": []}`)
}

// wait answers at once, and says how the container ended when it has.
func (e *engine) wait(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = http.NewResponseController(w).Flush()
	select {
	case <-e.ended:
		fmt.Fprintf(w, `{"StatusCode": %d}`+"\n", e.status)
	case <-r.Context().Done():
	}
}

// attach becomes a stream of what the container prints, which is nothing.
func attach(w http.ResponseWriter, _ *http.Request) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	_, _ = io.WriteString(conn, "HTTP/1.1 101 UPGRADED\r\nContent-Type: application/vnd.docker.raw-stream\r\n"+
		"Connection: Upgrade\r\nUpgrade: tcp\r\n\r\n")
	_ = conn.Close()
}

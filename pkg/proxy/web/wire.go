package web

import (
	"os"
	"sync/atomic"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// wire is a client's socket that net/http's server has. It counts the bytes sent, notes by them that the client gets
// on, and grows its buffers with the length of an answer.
type wire struct {
	*accepted
	socket  *sock.Socket
	buffers sock.StreamBuffers
	answer  int64 // bytes sent of the answer since the buffers were sized
	// multiplexed is HTTP/2. switched is another protocol, whose answer's length is not noted: its socket keeps small
	// buffers, and is written to by another goroutine.
	multiplexed, switched atomic.Bool
}

// Write writes to the socket.
func (w *wire) Write(b []byte) (int, error) {
	w.charge.Touch()
	n, err := w.socket.Write(b)
	w.sent(int64(n))
	return n, err
}

// SendFile is [sock.Socket.SendFile].
func (w *wire) SendFile(file *os.File, most int64, places sock.Places) (int64, error) {
	w.charge.Touch()
	n, err := w.socket.SendFile(file, most, places)
	w.sent(n)
	return n, err
}

func (w *wire) sent(n int64) {
	w.connections.metrics.bytesOut(n)
	if w.multiplexed.Load() || w.switched.Load() {
		return
	}
	if w.answer += n; w.answer > longAnswer {
		w.lengthen(nil)
	}
}

// lengthen gives a long answer large buffers, where there is room for them, and takes them back where there is not any
// more; likewise those of the endpoint's connection u, if that is not nil. It is called again as the answer gets on.
func (w *wire) lengthen(u *upstreamConn) {
	w.answer = 0
	// The largest are only for files: slow readers of a backend fill the sockets to both sides, those by TLS its buffers
	// as well. And only for clients that are far away: for near ones they cost half as much CPU again.
	most := sock.Medium
	if s := w.connections.settings.Load(); s.Handler != nil && s.TLS == nil && sock.Far(w.socket) {
		most = sock.Largest
	}
	if size, changed := w.buffers.Resize(&w.charge, w.socket, most); changed && u != nil {
		u.resize(size)
	}
}

// nextAnswer is called before another answer.
func (w *wire) nextAnswer() {
	if !w.switched.Load() {
		w.answer = 0
		w.buffers.Resize(&w.charge, w.socket, sock.Small)
	}
}

package tftp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tinkerbell/stack/pkg/bootfile"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/proxy/tftp/loader"
	"github.com/tinkerbell/stack/pkg/proxy/tftp/serve"
	"github.com/tinkerbell/stack/pkg/record"
)

// served is a transfer that the proxy itself serves.
type served struct {
	serve.Transfer
	file file
	// next and until are the blocks that are still to be sent now.
	next, until uint64
	// busy is until the file is open, or a part of it was read; sooner is no block sent, and no ACK looked at.
	busy bool
	// part is what was read of the file, from the block next on; nil where it is to be asked for.
	part []byte
	// late is a window that was not sent at once.
	late bool
	// duplicated is a request that was taken for the network's duplicate.
	duplicated bool
}

// file is what is served: a [bootfile.File], or a [loader.Loader].
type file interface {
	fmt.Stringer
	Size() int64
	// Read fills b from an offset on without waiting; bootfile.ErrWait is a file that Load has to be asked for.
	Read(b []byte, offset int64) error
	Load(b []byte, offset int64, done func(error))
	Close()
}

// partSize is how much of a file is read at once, in bytes: a window of 64 blocks in Ethernet frames.
const partSize = 96 << 10

var parts = sync.Pool{New: func() any { return new([partSize]byte) }}

// serve begins a transfer of a boot file or of a loader that is kept, and reports false where there is no such file:
// the endpoint is asked then.
func (h *handler) serve(w *worker, d datagram.Datagram, r request) (drop Drop, found bool) {
	octet := bytes.EqualFold(r.mode, []byte("octet"))
	if boot := h.files.Find(record.Text(r.file)); boot != nil {
		if !octet {
			boot.Close()
			w.Answer(d, modeError)
			h.recordRefusal(w, d, r, DropMode)
			return DropMode, true
		}
		return h.serveFile(w, d, r, boot), true
	}
	if !octet {
		return datagram.NotDropped, false
	}
	if kept := h.loader(record.Text(r.file), w.Now()); kept != nil {
		return h.serveFile(w, d, r, kept), true
	}
	return datagram.NotDropped, false
}

// loader finds a loader that is kept in memory; nil where the endpoint has to be asked. While boot files are not there
// yet, one of them may have the name.
func (h *handler) loader(asked string, now time.Time) *loader.Loader {
	name, ok := bootfile.LoaderName(asked)
	if !ok || h.config.Transparent || !h.loaders.On() || !h.files.Ready() {
		return nil
	}
	kept, answer := h.loaders.Find(name, now)
	h.meters.loaders[answer].Inc()
	return kept
}

// serveFile begins a transfer of a file.
func (h *handler) serveFile(w *worker, d datagram.Datagram, r request, file file) Drop {
	client := d.Client.Addr()
	if !h.firstAnswers.take(client) {
		if !w.NoteRefused(d) { // an invented address does not ask again
			file.Close()
			h.refuse(w, d, r, DropUnanswered, nil)
			return DropUnanswered
		}
		h.firstAnswers.takeAnyway(client)
	}
	s, drop := w.OpenServed(d)
	if drop != datagram.NotDropped {
		file.Close()
		h.firstAnswers.giveBack(client)
		h.refuse(w, d, r, drop, nil)
		return drop
	}
	h.begin(w, s, d, r)
	s.State.served, s.State.agreed.size = &served{file: file}, uint64(file.Size())
	var first [1]byte
	b := first[:min(1, file.Size())]
	if err := file.Read(b, 0); err == nil {
		h.answer(w, s)
	} else {
		h.load(w, s, make([]byte, len(b)), 0, func([]byte) { h.answer(w, s) })
	}
	return datagram.NotDropped
}

// answer sends the first answer, once the file is open.
func (h *handler) answer(w *worker, s *session) {
	t := &s.State
	r, _ := parseRequest(t.request)
	agreed := serve.Agree(func(option func(name, value []byte)) { eachOption(r.options, option) },
		t.served.file.Size(), func() int { return fits(w, s) })
	t.agreed.blockSize, t.agreed.window, t.answered = agreed.BlockSize, agreed.Window, true
	if agreed.OACK != nil {
		t.agreedOptions = optionText(agreed.OACK[2:])
	}
	h.act(w, s, t.served.Start(agreed, t.served.file.Size(), w.Now()))
}

// fits is how long a block may be that reaches the client in one packet, in bytes.
func fits(w *worker, s *session) int {
	const headers4, headers6 = 20 + 8 + headerSize, 40 + 8 + headerSize
	if s.Client.Addr().Is4() {
		return w.PathMTU(s) - headers4
	}
	return w.PathMTU(s) - headers6
}

// load reads a part of the file in a goroutine, and then calls got in the worker's.
func (h *handler) load(w *worker, s *session, b []byte, offset int64, got func(part []byte)) {
	t := &s.State
	t.served.busy = true
	t.served.file.Load(b, offset, func(err error) {
		w.Do(func() {
			if t.ended {
				return
			}
			t.served.busy = false
			if err != nil {
				h.unreadable(w, s, err)
				return
			}
			got(b)
		})
	})
}

// unreadable ends a transfer whose file cannot be read: in silence before the first answer, since firmware takes an
// ERROR for final and may have the file at its next try.
func (h *handler) unreadable(w *worker, s *session, err error) {
	t := &s.State
	h.troubleLines.Error("failed to read boot file", func() []any {
		return []any{"client", s.Client.AddrPort, "file", t.Name, "error", err}
	})
	t.Message = "boot file unreadable"
	if !t.answered {
		h.finish(w, s, EndingNoAnswer)
		w.CloseSession(s)
		return
	}
	w.Reply(s, readError)
	h.finish(w, s, EndingServerError)
}

// fromServedClient takes a datagram of the client of a transfer that the proxy serves.
func (h *handler) fromServedClient(w *worker, s *session, op uint16, data []byte) Drop {
	t := &s.State
	n, ok := blockNumber(data)
	switch {
	case !ok:
		return DropMalformed
	case op == opError && !t.ended:
		t.fail(data)
		h.finish(w, s, EndingClientError)
		return datagram.NotDropped
	case op != opAck || t.ended || !t.answered:
		return DropUnexpected
	case t.served.busy:
		return DropWhileWaiting
	}
	action, step := t.served.ACK(n, w.Now())
	if step {
		if !t.reacted { // the first ACK
			h.firstAnswers.giveBack(s.Client.Addr())
		}
		t.reacted = true
		w.Step(s)
	}
	if action == serve.Nothing && !step {
		if unwrap(t.high, n) > t.served.Acked() {
			return DropUnexpected // of a block that was not sent: a newer ACK of one that was would have been a step
		}
		return datagram.NotDropped // the network's copy, or repeated just before the block arrived
	}
	h.act(w, s, action)
	h.progress(w, s)
	return datagram.NotDropped
}

// repeatedToServed takes a request that equals the one of a transfer that the proxy serves, and reports false where it
// begins another transfer.
func (h *handler) repeatedToServed(w *worker, s *session) bool {
	t := &s.State
	served := t.served
	if t.ended {
		return false
	}
	if !t.answered || served.busy {
		return true
	}
	if action, ok := served.RepeatFirst(w.Now()); ok {
		h.act(w, s, action)
		return true
	}
	// The first one may be the network's duplicate, and is left out: a client that began anew asks again.
	if served.duplicated || served.Restarts(w.Now()) {
		return false
	}
	served.duplicated = true
	return true
}

// Due repeats what a client has not acknowledged.
func (h *handler) Due(w *worker, s *session) {
	if served := s.State.served; served != nil && !s.State.ended && !served.busy {
		h.act(w, s, served.Timeout(w.Now()))
	}
}

// act does what the state machine of a transfer says.
func (h *handler) act(w *worker, s *session, action serve.Action) {
	t := &s.State
	served := t.served
	if more := served.Resent - t.Resent; more > 0 {
		h.meters.retransmits.Add(float64(more))
		t.Resent = served.Resent
	}
	t.acked = served.Acked()
	switch action {
	case serve.SendOACK:
		w.Reply(s, served.OACK)
		h.meters.traffic.Passed(datagram.FromServer, len(served.OACK))
	case serve.SendData:
		served.next, served.until = served.Span()
		served.part, served.late = nil, false
		h.send(w, s)
		return
	case serve.Complete:
		h.finish(w, s, EndingCompleted)
		return
	case serve.GiveUp:
		w.CloseSession(s)
		return
	}
	w.CallAt(s, served.Due())
}

// send sends the blocks that are to be sent now.
func (h *handler) send(w *worker, s *session) {
	t := &s.State
	served := t.served
	size, length := served.file.Size(), int64(served.BlockSize)
	buffer := parts.Get().(*[partSize]byte)
	defer parts.Put(buffer)
	for served.next <= served.until {
		offset := int64(served.next-1) * length
		blocks := min(int64(served.until-served.next)+1, max(partSize/length, 1))
		part := served.part
		if part == nil {
			part = buffer[:min(blocks*length, size-offset)]
			if err := served.file.Read(part, offset); errors.Is(err, bootfile.ErrWait) {
				served.late = true
				h.load(w, s, make([]byte, len(part)), offset, func(part []byte) {
					served.part = part
					h.send(w, s)
				})
				return
			} else if err != nil {
				h.unreadable(w, s, err)
				return
			}
		}
		served.part = nil
		for range blocks {
			data := part[:min(length, int64(len(part)))]
			part = part[len(data):]
			var head [headerSize]byte
			binary.BigEndian.PutUint16(head[:], opData)
			binary.BigEndian.PutUint16(head[2:], uint16(served.next))
			w.Reply(s, head[:], data)
			h.meters.traffic.Passed(datagram.FromServer, headerSize+len(data))
			served.next++
		}
	}
	t.high = max(t.high, served.until)
	t.Bytes = min(t.high*uint64(length), uint64(size))
	if served.late {
		served.Delayed(w.Now())
	}
	w.CallAt(s, served.Due())
}

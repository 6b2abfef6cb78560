package tftp

import (
	"bytes"
	"log/slog"
	"time"

	"github.com/tinkerbell/stack/internal/loglimit"
	"github.com/tinkerbell/stack/pkg/bootfile"
	"github.com/tinkerbell/stack/pkg/proxy/datagram"
	"github.com/tinkerbell/stack/pkg/proxy/tftp/loader"
	"github.com/tinkerbell/stack/pkg/record"
)

type (
	worker  = datagram.Worker[transfer]
	session = datagram.Session[transfer]
)

// handler is the protocol's part of a front.
type handler struct {
	config       Config
	meters       *meters
	files        *bootfile.Directory
	loaders      *loader.Keeper
	firstAnswers firstAnswers
	// troubleLines logs what clients and strangers can cause any number of times.
	troubleLines *loglimit.Limiter
	// endLines logs the ends of transfers, of which a rack causes many in a second.
	endLines *loglimit.Limiter
	// patience is how long an endpoint may leave a request unanswered before the next repetition goes to another one.
	patience time.Duration
	port     uint16 // the port that machines send requests to
}

const defaultPatience = 5 * time.Second

// Client takes a datagram of a client.
func (h *handler) Client(w *worker, s *session, d datagram.Datagram) {
	if drop := h.fromClient(w, s, d); drop != datagram.NotDropped {
		h.drop(drop)
		return
	}
	h.meters.traffic.Passed(datagram.FromClient, len(d.Data))
}

func (h *handler) fromClient(w *worker, s *session, d datagram.Datagram) Drop {
	op, ok := opcode(d.Data)
	switch {
	case d.Client.Port() == 0:
		return datagram.DropPortZero
	case d.Truncated:
		return datagram.DropTruncated
	case !ok:
		return DropMalformed
	case op == opRead || op == opWrite:
		return h.request(w, s, d)
	case s == nil:
		return DropNoSession
	case s.State.served != nil:
		return h.fromServedClient(w, s, op, d.Data)
	}
	t := &s.State
	if !t.expects(op, datagram.FromClient) || !t.answered {
		return DropUnexpected
	}
	if _, ok := blockNumber(d.Data); !ok {
		return DropMalformed
	}
	if t.missed(op, d.Data, w.Now()) {
		h.resend(w, s)
		return datagram.NotDropped
	}
	step := t.isStep(op, d.Data)
	if s.Send(d.Data, t.server) != nil {
		return datagram.DropUnsent
	}
	if step {
		t.reacted = true
		w.Step(s)
	}
	if op == opError {
		t.fail(d.Data)
		h.finish(w, s, EndingClientError)
	} else {
		h.observe(w, s, op, d.Data)
	}
	return datagram.NotDropped
}

// request opens a transfer, or finds the one that the request repeats. The order: the repeated request of a transfer
// that the proxy serves; that of one which an endpoint has answered; a file that the proxy has; the repeated request of
// a transfer which no endpoint has answered yet; a new transfer.
func (h *handler) request(w *worker, s *session, d datagram.Datagram) Drop {
	r, ok := parseRequest(d.Data)
	if !ok {
		return DropMalformed
	}
	if r.op == opWrite {
		w.Answer(d, writeError)
		h.recordRefusal(w, d, r, DropWriteRefused)
		return DropWriteRefused
	}
	if s != nil && s.State.served != nil && bytes.Equal(d.Data, s.State.request) && h.repeatedToServed(w, s) {
		return datagram.NotDropped
	}
	ready := h.files.Ready() // before the file is looked for
	repeats := s != nil && s.State.repeats(d.Data)
	if repeats && s.State.answered {
		s.State.filesAwaited = !ready
		return h.repeat(w, s, d)
	}
	// It is new; or repeated since no endpoint has answered: the file may have come by now.
	if drop, found := h.serve(w, d, r); found {
		return drop
	}
	if repeats {
		s.State.filesAwaited = !ready
		return h.repeat(w, s, d)
	}
	opened, drop, err := w.Open(d)
	if drop != datagram.NotDropped {
		h.refuse(w, d, r, drop, err)
		return drop
	}
	h.begin(w, opened, d, r)
	opened.State.filesAwaited = !ready
	if err := opened.Send(d.Data, opened.Endpoint); err != nil {
		h.troubleLines.Warn("request not sent", func() []any {
			return []any{"endpoint", opened.Endpoint.AddrPort, "error", err}
		})
		return datagram.DropUnsent
	}
	return datagram.NotDropped
}

// begin takes note of a transfer that a request begins.
func (h *handler) begin(w *worker, s *session, d datagram.Datagram, r request) {
	s.State = newTransfer(d.Data, r)
	s.State.Exchange = h.exchange(s.Client, w.Now(), r.op, string(clip(r.file)))
	s.State.requestedAt, s.State.recordedAt = s.State.Begin, s.State.Begin
	h.meters.live.Inc()
	h.record(s, record.Began, s.State.requestedOptions)
}

// refuse records and logs a request that gets no session.
func (h *handler) refuse(w *worker, d datagram.Datagram, r request, drop Drop, err error) {
	h.recordRefusal(w, d, r, drop)
	h.troubleLines.Warn("request dropped", func() []any {
		return []any{
			"reason", drops.Name(drop), "client", d.Client.AddrPort, "file", string(clip(r.file)), "error", err,
		}
	})
}

// repeat takes a request that a client repeats, having got no answer. If the server has not answered, the request is
// sent again. If it has, its first answer is sent again: the server would take the request for a second transfer.
func (h *handler) repeat(w *worker, s *session, d datagram.Datagram) Drop {
	t := &s.State
	if t.answered {
		w.Reply(s, t.first)
		h.meters.retransmits.Inc()
		t.Resent++
		return datagram.NotDropped
	}
	if w.Now().Sub(t.requestedAt) >= h.patience {
		t.requestedAt = w.Now()
		h.config.Report.NoAnswer(s.Endpoint)
		w.Move(s)
	}
	if s.Send(d.Data, s.Endpoint) != nil {
		return datagram.DropUnsent
	}
	return datagram.NotDropped
}

// Server takes a datagram that has reached a session's own socket.
func (h *handler) Server(w *worker, s *session, from datagram.Peer, data []byte) bool {
	if drop := h.fromServer(w, s, from, data); drop != datagram.NotDropped {
		h.drop(drop)
		return false
	}
	h.meters.traffic.Passed(datagram.FromServer, len(data))
	return true
}

func (h *handler) fromServer(w *worker, s *session, from datagram.Peer, data []byte) Drop {
	t := &s.State
	op, ok := opcode(data)
	if from.Addr() != s.Endpoint.Addr() || t.answered && from.Port() != t.server.Port() {
		// RFC 1350 section 4. An ERROR is never answered, or two strangers would talk for ever.
		if ok && op != opError && from.Port() != 0 {
			_ = s.Send(strangerError, from)
		}
		h.troubleLines.Warn("datagram of a stranger dropped", func() []any {
			return []any{"stranger", from.AddrPort, "endpoint", s.Endpoint.AddrPort, "client", s.Client.AddrPort}
		})
		return datagram.DropStranger
	}
	if !ok {
		return DropMalformed
	}
	if !t.expects(op, datagram.FromServer) {
		return DropUnexpected
	}
	if len(data) < headerSize && op != opOack {
		return DropMalformed
	}
	if op == opError && !t.answered && t.filesAwaited {
		return DropNotReady // the file may be one of ours, and firmware takes an ERROR for final
	}
	if !t.answered {
		t.answered = true
		h.config.Report.Well(s.Endpoint)
		t.server = from
		t.first = bytes.Clone(data[:min(len(data), headerSize+defaultBlock)])
	}
	if op == opError {
		t.fail(data)
		h.finish(w, s, EndingServerError)
		return datagram.NotDropped
	}
	h.observe(w, s, op, data)
	if op == opData {
		t.keep(data, w.Now())
	}
	return datagram.NotDropped
}

func (h *handler) observe(w *worker, s *session, op uint16, data []byte) {
	t := &s.State
	before := t.Resent
	if t.observe(op, data) {
		h.finish(w, s, EndingCompleted)
	}
	if t.Resent != before {
		h.meters.retransmits.Inc()
	}
	h.progress(w, s)
	if op == opOack {
		if burst := t.agreed.window * (t.agreed.blockSize + overhead); burst > defaultReceive {
			s.GrowBuffers(2 * burst)
		}
	}
}

// progress records from time to time how far a transfer got.
func (h *handler) progress(w *worker, s *session) {
	t := &s.State
	if now := w.Now(); !t.ended && now.Sub(t.recordedAt) >= record.Progress {
		t.recordedAt, t.Took = now, now.Sub(t.Begin)
		h.record(s, record.Began, t.agreedOptions)
	}
}

// overhead is the kernel's charge for a datagram beside its payload, and defaultReceive the size of its default buffer,
// both roughly and in bytes.
const (
	overhead       = 768
	defaultReceive = 128 << 10
)

// Unreachable ends a transfer before its first answer, so that the client's next try picks an endpoint again. After the
// first answer the refusal mostly means that the server has finished and closed its socket.
func (h *handler) Unreachable(w *worker, s *session) {
	if s.State.answered {
		return
	}
	h.config.Report.Refused(s.Endpoint)
	h.finish(w, s, EndingUnreachable)
	w.CloseSession(s)
}

// Closed ends a transfer whose session is closed.
func (h *handler) Closed(w *worker, s *session, why datagram.End) {
	h.recordEnd(w, s, s.State.endingOf(why))
}

// finish ends a transfer; its session lingers.
func (h *handler) finish(w *worker, s *session, e Ending) {
	h.recordEnd(w, s, e)
	w.Finish(s)
}

// recordEnd counts, logs and records a transfer, once.
func (h *handler) recordEnd(w *worker, s *session, ending Ending) {
	t := &s.State
	if t.ended {
		return
	}
	t.ended = true
	if t.served != nil {
		t.served.file.Close()
		if !t.reacted { // else its first ACK has given the place back
			h.firstAnswers.giveBack(s.Client.Addr())
		}
	} else if ending == EndingNoAnswer {
		h.config.Report.NoAnswer(s.Endpoint)
	}
	t.Took = w.Now().Sub(t.Begin)
	h.meters.live.Dec()
	h.meters.transfers[ending].Inc()
	level := slog.LevelInfo
	switch ending {
	case EndingCompleted:
		h.meters.seconds.Observe(t.Took.Seconds())
	case EndingUnreachable, EndingNoAnswer, EndingTimeout, EndingDrained:
		level = slog.LevelWarn
	}
	limiter := h.endLines
	if ending == EndingEvicted { // a flood can cause any number of these
		limiter, level = h.troubleLines, slog.LevelWarn
	}
	limiter.LogAt(w.Now().UnixNano(), level, "tftp transfer ended", func() []any { return t.line(s, ending) })
	if ending != EndingCompleted {
		t.Reason = ending.String()
	}
	t.Expected, t.BlockSize, t.Window = t.agreed.size, uint16(t.agreed.blockSize), uint16(t.agreed.window)
	h.record(s, ending.recorded(), t.agreedOptions)
}

// exchange makes the record of a transfer that a request begins.
func (h *handler) exchange(client datagram.Peer, now time.Time, op uint16, file string) record.Exchange {
	x := record.Exchange{
		Kind: record.TFTP, Route: h.config.Route, Port: h.port, Client: client.Addr(), Begin: now, Name: file,
	}
	if op == opWrite {
		x.Method = "write"
	}
	return x
}

// record records a transfer. Options are those of the machine's request, or those of the server's OACK: they tell one
// firmware from another.
func (h *handler) record(s *session, outcome record.Outcome, options string) {
	x := &s.State.Exchange
	x.Outcome, x.Endpoint, x.Software = outcome, s.Endpoint.AddrPort, options
	h.config.Sink.Record(*x)
}

// recordRefusal records a request that is not passed on.
func (h *handler) recordRefusal(w *worker, d datagram.Datagram, r request, why Drop) {
	x := h.exchange(d.Client, w.Now(), r.op, record.Text(r.file))
	x.Outcome, x.Reason = record.Refused, drops.Name(why)
	if why == datagram.DropNoEndpoint {
		x.Outcome = record.NoServer
	}
	h.config.Sink.Record(x)
}

// line is the arguments of the log line about the transfer's end.
func (t *transfer) line(s *session, ending Ending) []any {
	from, name := "endpoint", any(s.Endpoint.AddrPort)
	if t.served != nil {
		from, name = "boot_file", t.served.file.String()
		if _, kept := t.served.file.(*loader.Loader); kept {
			from = "loader"
		}
	}
	args := []any{
		"client", s.Client.AddrPort, "asked", s.Asked, from, name, "file", t.Name,
		"outcome", ending.String(), "bytes", t.Bytes, "blocks", t.high, "retransmits", t.Resent,
		"seconds", t.Took.Seconds(), "requested", t.requestedOptions, "agreed", t.agreedOptions,
	}
	if s.Transparent {
		args = append(args, "source", "transparent")
		if ending == EndingNoAnswer {
			args = append(args, "remedy", unheard)
		}
	}
	if t.Message != "" {
		args = append(args, "code", t.code, "message", t.Message)
	}
	return args
}

// unheard is the remedy where the server may have answered the machine directly, past this proxy.
const unheard = "route the server's answers to machines' addresses to this proxy, or set source: proxy (docs/tftp.md)"

// Lost counts the datagrams that a full receive buffer has lost.
func (h *handler) Lost(n uint32) { h.meters.drops[datagram.DropOverflow].Add(float64(n)) }

// Unsent counts the datagrams that the kernel did not take.
func (h *handler) Unsent(n int, err error) {
	h.meters.drops[datagram.DropUnsent].Add(float64(n))
	h.troubleLines.Warn("datagrams to clients not sent", func() []any {
		return []any{"count", n, "error", err}
	})
}

func (h *handler) drop(d Drop) { h.meters.drops[d].Inc() }

var _ datagram.Handler[transfer] = (*handler)(nil)

package web

import (
	"cmp"
	"errors"
	"io/fs"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// teller tells of a route's requests. It reads what was done and changes nothing of it.
type teller struct {
	tell  func(*boot.Event) // nil: nobody is told
	route string
	port  uint16
	spare *boot.Allowance // of what is refused
	each  *boot.Budgets   // of clients, for ordinary requests
}

// Lengths of texts in an event, in bytes.
const (
	mostPath, mostAgent, mostMessage, mostMethod, mostPlace, mostReason = 160, 64, 64, 12, 24, 48
)

// Why an answer did not get whole to its client, or there was none.
const (
	reasonTorn    = "torn"
	reasonGone    = "client_gone"
	reasonStalled = "client_stalled"
	reasonBody    = "client_body"
)

// outcome is what became of a request, beyond its code.
type outcome struct {
	kind      boot.Outcome // Passed: as the code and the bytes say
	reason    string
	endpoint  netip.AddrPort // that was asked last
	announced bool           // its beginning was told
	unsent    error          // of writing the answer
	failure   error          // why no endpoint has answered; nil where the client had gone
}

// Refused implements the interface by which package reply tells that a request goes no further.
func (r *response) Refused(text string) { r.outcome.kind, r.outcome.reason = boot.Refused, text }

// outcomeOf is the outcome of the request that w answers; nil where w is not an observer's.
func outcomeOf(w http.ResponseWriter) *outcome {
	if r, ok := w.(*response); ok {
		return &r.outcome
	}
	return nil
}

// sentTo notes the endpoint that a request goes to.
func (f *outcome) sentTo(endpoint netip.AddrPort) {
	if f != nil {
		f.endpoint = endpoint
	}
}

// failed notes why no endpoint has answered.
func (f *outcome) failed(reason string, err error) {
	if f == nil {
		return
	}
	f.kind, f.reason, f.failure = boot.NoServer, reason, err
	switch reason {
	case reasonGone:
		f.kind, f.failure = boot.Torn, nil
	case reasonStalled, reasonBody:
		f.kind = boot.Refused
	}
}

// torn notes that an answer did not get whole to its client.
func (f *outcome) torn(reason string) { f.kind, f.reason = boot.Torn, reason }

// request is what is told of a request that net/http serves, from its beginning on.
type request struct {
	*http.Request
	observer *observer // nil: nobody is told
	path     string    // as the client asked for it: a gate may rewrite the one in Request
	client   netip.Addr
	start    time.Time
}

// fill puts it into an event, with the answer's outcome so far.
func (r *request) fill(e *boot.Event, f *outcome) {
	e.Kind, e.At = boot.HTTP, r.start.UnixNano()
	e.Route, e.Client = r.observer.port, boot.Bytes(r.client)
	e.Endpoint, e.Port = boot.Bytes(f.endpoint.Addr()), f.endpoint.Port()
	e.Offset = offset(r.Header.Get("Range"))
	boot.SetText(e, boot.File, mostPath, r.path)
	boot.SetText(e, boot.Agent, mostAgent, r.UserAgent())
}

// name ends an event's texts.
func (t *teller) name(e *boot.Event, method, reason string) {
	boot.SetText(e, boot.Method, mostMethod, method)
	boot.SetText(e, boot.Place, mostPlace, t.route)
	boot.SetText(e, boot.Reason, mostReason, reason)
}

// tellCall tells that a gRPC call is under way: it may be a stream that is silent for hours.
func (r *response) tellCall() {
	if r.request.observer == nil || !reply.IsGRPC(r.request.Request) {
		return
	}
	e := boot.Borrow()
	defer e.Return()
	r.request.fill(e, &r.outcome)
	e.Kind, e.Outcome = boot.Stream, boot.Began
	r.request.observer.name(e, "", "")
	r.request.observer.tell(e)
}

// tellLong tells that a long answer is under way, once: when its head says so, or, where that tells no length, when as
// much has been written.
func (r *response) tellLong(length uint64) {
	if r.outcome.announced || r.request.observer == nil || length < boot.LongAnswer || reply.IsGRPC(r.request.Request) {
		return
	}
	r.outcome.announced = true
	e := boot.Borrow()
	defer e.Return()
	r.request.fill(e, &r.outcome)
	e.Outcome, e.Status, e.Expected = boot.Began, uint16(cmp.Or(r.code, http.StatusOK)), r.expected()
	r.request.observer.name(e, r.request.Method, "")
	r.request.observer.tell(e)
}

// tellEnd tells what became of a request. grpc is the name of a call's code; empty if it was none.
func (r *response) tellEnd(code int, took time.Duration, grpc string) {
	o, f := r.request.observer, &r.outcome
	if o == nil {
		return
	}
	at, sent, expected := r.request.start.UnixNano()+int64(took), uint64(r.bytes), r.expected()
	switch {
	case grpc != "":
		expected = 0
	case r.request.Method == http.MethodHead:
		sent = 0
	case f.kind == boot.Passed && sent < expected && code != http.StatusNotModified:
		f.torn(shortOf(f.unsent))
	}
	switch f.kind {
	case boot.Passed:
		if grpc == "" && !o.each.Allow(r.request.client, at, code, max(sent, expected)) {
			return
		}
	case boot.Refused:
		if !o.spare.Take(at) {
			return
		}
	}
	e := boot.Borrow()
	defer e.Return()
	r.request.fill(e, f)
	e.At, e.Took, e.Status, e.Bytes, e.Expected = at, took, uint16(code), sent, expected
	if e.Outcome = f.kind; e.Outcome == boot.Passed {
		e.Outcome = boot.Done
	}
	method := r.request.Method
	if grpc != "" {
		e.Kind, e.Status, method = boot.Stream, grpcNumber(grpc), ""
		boot.SetText(e, boot.Message, mostMessage, grpcMessage(r.Header()))
	}
	o.name(e, method, f.reason)
	o.tell(e)
}

// shortOf is why an answer was short, by the error of writing it: a file that has become shorter, or one that cannot be
// read on, is our fault.
func shortOf(unsent error) string {
	if unsent == nil || errors.As(unsent, new(*fs.PathError)) {
		return reasonTorn
	}
	return reasonGone
}

// expected is the length that an answer's head tells; 0 where it tells none.
func (r *response) expected() uint64 {
	if r.request.observer == nil || r.request.Method == http.MethodHead {
		return 0
	}
	values := r.Header()["Content-Length"]
	if len(values) == 0 {
		return 0
	}
	n, _ := strconv.ParseUint(values[0], 10, 63)
	return n
}

// offset is where the range begins that a Range header asks for: the first, where there are several.
func offset[T string | []byte](ranges T) uint64 {
	const unit = "bytes="
	if len(ranges) < len(unit) || string(ranges[:len(unit)]) != unit {
		return 0
	}
	n := uint64(0)
	for _, c := range []byte(ranges[len(unit):]) {
		if c < '0' || c > '9' || n > 1<<58 {
			break
		}
		n = 10*n + uint64(c-'0')
	}
	return n
}

// grpcNumber is a code's number; that of Unknown for what gRPC has no number for.
func grpcNumber(name string) uint16 {
	if i := slices.Index(grpcCodes[:], name); i >= 0 && name != grpcOther {
		return uint16(i)
	}
	return 2
}

// grpcMessage is the text of a call's status.
func grpcMessage(answer http.Header) string {
	values := slices.Concat(answer[headerMessage], answer[trailerMessage])
	if len(values) == 0 {
		return ""
	}
	text := values[len(values)-1]
	if decoded, err := url.PathUnescape(text); err == nil {
		return decoded
	}
	return text
}

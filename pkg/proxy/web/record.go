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
	"strings"
	"syscall"
	"time"

	"github.com/tinkerbell/stack/pkg/boot"
	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/record"
)

// reasonTorn is that of an answer which did not get whole to its client by its endpoint's or file's doing. The client's
// doing has the reasons of package boot: a client that took nothing of its answer for the route's stall is in the
// metrics with those that went, and in records as [boot.ReasonOurTimeout].
const reasonTorn = "torn"

// draft is the record in the making of a request that net/http serves.
type draft struct {
	record.Exchange
	announced announced
	sendError error // of writing the answer
	failure   error // why no endpoint has answered; nil where the client had gone
}

// Refused implements the interface by which package reply tells that a request goes no further.
func (r *response) Refused(text string) { r.draft.Outcome, r.draft.Reason = record.Refused, text }

// draftOf is that of the request that w answers; nil where w is not an observer's.
func draftOf(w http.ResponseWriter) *draft {
	if r, ok := w.(*response); ok {
		return &r.draft
	}
	return nil
}

// sentTo notes the endpoint that a request goes to.
func (d *draft) sentTo(endpoint netip.AddrPort) {
	if d != nil {
		d.Endpoint = endpoint
	}
}

// failed notes why no endpoint has answered.
func (d *draft) failed(reason string, err error) {
	if d == nil {
		return
	}
	d.Outcome, d.Reason, d.failure = record.NoServer, reason, err
	switch reason {
	case boot.ReasonClientGone:
		d.Outcome, d.failure = record.Torn, nil
	case boot.ReasonClientStalled, boot.ReasonClientBody:
		d.Outcome = record.Refused
	}
}

// torn notes that an answer did not get whole to its client.
func (d *draft) torn(reason string) { d.Outcome, d.Reason = record.Torn, reason }

// exchange is a request from its beginning on. The name is its path as the client asked for it: a gate may change it.
func (o *observer) exchange(client netip.Addr, begin time.Time, name string) record.Exchange {
	return record.Exchange{Kind: record.HTTP, Route: o.route, Port: o.port, Client: client, Begin: begin, Name: name}
}

// record completes a request that has begun or ended, and hands it to the sink.
func (r *response) record(x record.Exchange) {
	x.Software, x.Offset = r.request.UserAgent(), offset(r.request.Header.Get("Range"))
	r.sink.Record(x)
}

// announced is what was recorded of a request before its end.
type announced struct {
	recorded bool
	code     int           // of the answer by then; 0: there was none
	took     time.Duration // to the last record
}

// notice is what is to be recorded of a request that goes on.
type notice uint8

const (
	noNotice     notice = iota
	answerWaits         // it has no answer yet
	answerBegins        // a long answer, recorded as of its request's begin: nothing was sent, and no time has passed
	answerGoesOn        // how much of it was sent
)

// next is what is to be recorded of a request that has taken some time by now: that it waits, once, after
// [record.Waits]; of a long answer its beginning, then each [record.Progress] how far it is.
func (a *announced) next(code int, long bool, took time.Duration) (due notice) {
	again := a.recorded && a.code == code
	switch {
	case !long && (again || took < record.Waits):
		return noNotice
	case again && took-a.took < record.Progress:
		return noNotice
	case !long:
		due = answerWaits
	case again:
		due = answerGoesOn
	default:
		due = answerBegins
	}
	if due != answerBegins {
		a.took = max(took, a.took)
	}
	a.recorded, a.code = true, code
	return due
}

// recordCall records that a gRPC call is under way: it may be a stream that is silent for hours.
func (r *response) recordCall() {
	if r.sink == nil || !reply.IsGRPC(r.request) {
		return
	}
	x := r.draft.Exchange
	x.Kind, x.Outcome = record.Stream, record.Began
	r.record(x)
}

// recordLong records that a long answer is under way: when its head says so, or, where that tells no length, when as
// much has been written; then, from time to time, how much it is.
func (r *response) recordLong(length uint64) {
	o := &r.draft
	if r.sink == nil || length < record.LongAnswer || reply.IsGRPC(r.request) {
		return
	}
	took := time.Since(o.Begin)
	due := o.announced.next(r.code, true, took)
	if due == noNotice {
		return
	}
	x := o.Exchange
	if due == answerGoesOn {
		x.Took, x.Bytes = took, uint64(r.bytes)
	}
	x.Outcome, x.Reason, x.Method = record.Began, "", r.request.Method
	x.Code, x.Expected = uint16(cmp.Or(r.code, http.StatusOK)), r.expected()
	r.record(x)
}

// recordEnd records what became of a request. grpc is the name of a call's code; empty if it was none.
func (r *response) recordEnd(grpc string) {
	if r.sink == nil {
		return
	}
	x := &r.draft
	x.Method, x.Expected = r.request.Method, r.expected()
	switch {
	case grpc != "":
		x.Kind, x.Code, x.Method, x.Expected = record.Stream, grpcNumber(grpc), "", 0
		x.Message = grpcMessage(r.Header())
	case x.Code/100 == 3:
		x.Message = r.Header().Get("Location")
	case x.Method == http.MethodHead:
		x.Bytes = 0
	case x.Outcome == record.Done && x.Bytes < x.Expected && x.Code != http.StatusNotModified:
		x.torn(r.shortBy(x.sendError))
	}
	r.record(x.Exchange)
}

// shortBy is why an answer was short, by the error of writing it: a file that has become shorter, or one that cannot be
// read on, is our fault.
func (r *response) shortBy(sendError error) string {
	if sendError == nil || errors.As(sendError, new(*fs.PathError)) {
		return reasonTorn
	}
	return r.notTaken()
}

// notTaken is why the client did not take the whole answer.
func (r *response) notTaken() string {
	c := connOfRequest(r.request) // the kernel's TCP_USER_TIMEOUT may be sooner than the stall timer
	if c != nil && c.gaveUp.Load() || errors.Is(r.draft.sendError, syscall.ETIMEDOUT) {
		return boot.ReasonOurTimeout
	}
	return boot.ReasonClientGone
}

// expected is the length that an answer's head tells; 0 where it tells none.
func (r *response) expected() uint64 {
	if r.sink == nil || r.request.Method == http.MethodHead {
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
func offset(ranges string) uint64 {
	ranges, ok := strings.CutPrefix(ranges, "bytes=")
	n := uint64(0)
	for _, c := range []byte(ranges) {
		if !ok || c < '0' || c > '9' || n > 1<<58 {
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

// recordOf returns the record of a request that the engine has served, or begins to answer. Its texts are valid while
// the engine has it.
func (o *observer) recordOf(x *http1.Exchange, r http1.Result, took time.Duration) record.Exchange {
	e := o.exchange(x.Client, x.Start, record.Text(plainPath(x.Request.Target)))
	e.Took, e.Code, e.Bytes, e.Expected = took, uint16(r.Code), uint64(r.Sent), uint64(r.Expected)
	c := connOf(x)
	e.Method, e.Endpoint, e.Message = x.Request.Method(), c.request.to, r.Location
	if e.Reason = reasonOf(r); e.Reason != "" {
		e.Outcome = record.Torn
		if r.Stalled {
			e.Reason = boot.ReasonOurTimeout
		}
	} else if c.request.reason != "" {
		e.Outcome, e.Reason = record.NoServer, c.request.reason
	}
	for _, l := range slices.Backward(x.Request.Lines) { // of several, the first one counts
		switch {
		case l.Is("user-agent"):
			e.Software = record.Text(l.Value)
		case l.Is("range"):
			e.Offset = offset(record.Text(l.Value))
		}
	}
	return e
}

// reasonOf is why an answer did not get whole to its client; empty if it did.
func reasonOf(r http1.Result) string {
	switch {
	case r.Broken != nil:
		return reasonTorn
	case r.Gone:
		return boot.ReasonClientGone
	default:
		return ""
	}
}

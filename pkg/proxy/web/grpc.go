package web

import (
	"errors"
	"net/http"
	"slices"
	"strconv"
	"time"

	"github.com/tinkerbell/stack/pkg/edge/reply"
)

// grpcCodes are gRPC's status codes by number (google.rpc.Code), as Go and the metrics of gRPC servers write them, and
// behind them one for all else.
var grpcCodes = [...]string{
	"OK", "Canceled", "Unknown", "InvalidArgument", "DeadlineExceeded", "NotFound", "AlreadyExists", "PermissionDenied",
	"ResourceExhausted", "FailedPrecondition", "Aborted", "OutOfRange", "Unimplemented", "Internal", "Unavailable",
	"DataLoss", "Unauthenticated", grpcOther,
}

const (
	grpcCanceled = "Canceled"
	grpcOverdue  = "DeadlineExceeded"
	grpcOther    = "other" // no status at all, or a number that gRPC does not know
)

// grpcFaults are the codes that a server gives when something is wrong with itself, or that a gate refuses with. The
// others are answers: a worker is told NotFound each time that it asks and there is nothing to do.
var grpcFaults = []string{
	"Unknown", "DeadlineExceeded", "Unimplemented", "Internal", "Unavailable", "DataLoss", grpcOther,
	"PermissionDenied", "ResourceExhausted", "Unauthenticated",
}

// Header is where a status is: in the trailers, or, if there is nothing but trailers, in the header.
const (
	headerStatus   = "Grpc-Status"
	headerMessage  = "Grpc-Message"
	trailerStatus  = http.TrailerPrefix + headerStatus
	trailerMessage = http.TrailerPrefix + headerMessage
)

// grpcCode is the name of the status that a call ended with; empty if it is none. Gone says that the client did not
// wait for the end.
func grpcCode(r *http.Request, answer http.Header, took time.Duration, gone bool) string {
	if !reply.IsGRPC(r) {
		return ""
	}
	name := grpcOther
	if values := slices.Concat(answer[headerStatus], answer[trailerStatus]); len(values) > 0 {
		// ParseUint takes no sign; the last value is the trailers'.
		if n, err := strconv.ParseUint(values[len(values)-1], 10, 8); err == nil && int(n) < len(grpcCodes) {
			name = grpcCodes[n]
		}
	} else if gone {
		name = grpcCanceled
	}
	if name == grpcCanceled && overdue(r, took) {
		return grpcOverdue
	}
	return name
}

// overdue is whether a call took all the time that its client gave it: then it was not the client's whim that ended it.
// The time began at the client, a little earlier than here.
func overdue(r *http.Request, took time.Duration) bool {
	text := r.Header.Get("Grpc-Timeout")
	if text == "" {
		return false
	}
	last := len(text) - 1
	unit := map[byte]float64{'H': 3600, 'M': 60, 'S': 1, 'm': 1e-3, 'u': 1e-6, 'n': 1e-9}[text[last]]
	n, err := strconv.ParseUint(text[:last], 10, 27) // eight digits at most
	return err == nil && unit > 0 && took.Seconds() >= 0.9*unit*float64(n)
}

// textCancelled is the message of a call that its endpoint cancelled.
const textCancelled = "stack-proxy: the backend cancelled the call"

// streamError is a stream's end in HTTP/2 as net/http's own error converts to, by its method As.
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "the stream was reset" }

// wasCancelled reports whether an endpoint reset a stream with CANCEL (RFC 9113, section 7): servers of gRPC do so when
// the call's time is over, or the call is no longer wanted. That is no fault of the endpoint.
func wasCancelled(err error) bool {
	const cancel = 8
	var e streamError
	return errors.As(err, &e) && e.Code == cancel
}

// cancelledCode is the status of such a call after some time.
func cancelledCode(r *http.Request, took time.Duration) reply.Code {
	if overdue(r, took) {
		return reply.DeadlineExceeded
	}
	return reply.Cancelled
}

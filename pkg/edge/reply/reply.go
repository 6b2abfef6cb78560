// Package reply answers requests that go no further: a status for HTTP, a trailers-only answer for gRPC, whose
// clients look nowhere else.
package reply

import (
	"net/http"
	"net/url"
	"strconv"
	"strings"
)

// Code is a gRPC status code (google.rpc.Code).
type Code uint8

// The codes that the edge answers with.
const (
	Cancelled         Code = 1
	InvalidArgument   Code = 3
	DeadlineExceeded  Code = 4
	NotFound          Code = 5
	PermissionDenied  Code = 7
	ResourceExhausted Code = 8
	Unavailable       Code = 14
	Unauthenticated   Code = 16
)

// IsGRPC says whether a request is a gRPC call.
func IsGRPC(r *http.Request) bool {
	kind, ok := strings.CutPrefix(r.Header.Get("Content-Type"), "application/grpc")
	return ok && r.ProtoMajor >= 2 && (kind == "" || kind[0] == '+' || kind[0] == ';')
}

// Refuse refuses a request; see [Write]. A ResponseWriter with a method Refused is told of the text.
func Refuse(w http.ResponseWriter, r *http.Request, status int, code Code, text string) {
	if told, ok := w.(interface{ Refused(text string) }); ok {
		told.Refused(text)
	}
	Write(w, r, status, code, text)
}

// Write answers a request with status and a line of text, or, if it is a gRPC call, with code and the text as its
// message, in headers that are the trailers as well (Trailers-Only).
func Write(w http.ResponseWriter, r *http.Request, status int, code Code, text string) {
	header := w.Header()
	header.Set("Cache-Control", "no-store")
	if IsGRPC(r) {
		header.Set("Content-Type", "application/grpc")
		header.Set("Grpc-Status", strconv.Itoa(int(code)))
		header.Set("Grpc-Message", strings.ReplaceAll(url.QueryEscape(text), "+", " "))
		w.WriteHeader(http.StatusOK)
		return
	}
	header.Set("Content-Type", "text/plain; charset=utf-8")
	header.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	if r.Method != http.MethodHead {
		_, _ = w.Write([]byte(text + "\n")) // the client has gone
	}
}

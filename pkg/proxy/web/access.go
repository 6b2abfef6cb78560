package web

import (
	"context"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"github.com/tinkerbell/stack/pkg/record"
)

// AccessLog says which requests are logged: "off", "errors" (codes from 400, and gRPC's grpcFaults) or "all".
type AccessLog string

// logs reports whether a request is logged.
func (o *observer) logs(code uint16, faulty bool) bool {
	switch o.settings.AccessLog {
	case "all":
		return true
	case "errors":
		return code >= http.StatusBadRequest || faulty
	default:
		return false
	}
}

// access is what the access line says beside the record of its request.
type access struct {
	peer       netip.Addr // of the connection
	host, path string
	grpc       string // the code's name; empty if it was no call
	faulty     bool   // an end that counts as an error, whatever its code
	failure    error  // why no endpoint has answered
}

// Lengths of texts in a line, in bytes: most of them are the client's, and a line stays below 4 KiB.
const mostLogged, mostLoggedMethod = 256, 32

// write writes a line, unless the client, or all together, have had too many about what went wrong.
func (o *observer) write(x *record.Exchange, a access) {
	torn := x.Outcome == record.Torn && x.Reason == reasonTorn
	kind := "" // of trouble; none where all went well
	switch {
	case a.faulty && a.grpc != "":
		kind = a.grpc
	case torn:
		kind = reasonTorn
	case x.Code >= http.StatusBadRequest:
		kind = strconv.Itoa(int(x.Code))
	}
	if kind != "" && !o.lines.Allow(x.Client, kind) {
		return
	}
	level := slog.LevelInfo
	if torn {
		level = slog.LevelWarn
	}
	log := o.log
	if a.grpc != "" {
		log = log.With("grpc_code", a.grpc)
	}
	log = log.With("method", cut(x.Method, mostLoggedMethod),
		"path", cut(a.path, mostLogged), "code", x.Code, "bytes", x.Bytes, "seconds", x.Took.Seconds(), "client", a.peer,
		"host", cut(a.host, mostLogged), "agent", cut(x.Software, mostLogged), "torn", torn)
	if a.failure != nil {
		log.Warn("request failed", "reason", x.Reason, "error", cut(a.failure.Error(), mostLogged))
		return
	}
	log.Log(context.Background(), level, "request")
}

// cut shortens a text of a client's, and marks it.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const mark = "…"
	return strings.ToValidUTF8(text[:most-len(mark)], "") + mark // which drops a character that is cut in two
}

package web

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/tinkerbell/stack/pkg/record"
)

// AccessLog says which requests are logged: "off", "errors" (codes from 400, and gRPC's grpcFaults), "all", or "1/N" of
// those that went well and all errors.
type AccessLog struct {
	errors bool
	every  uint64 // 1 of so many that went well; 0 none
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *AccessLog) UnmarshalText(text []byte) error {
	switch s := string(text); s {
	case "off", "":
		*a = AccessLog{}
	case "errors":
		*a = AccessLog{errors: true}
	case "all":
		*a = AccessLog{errors: true, every: 1}
	default:
		var n uint64
		if _, err := fmt.Sscanf(s, "1/%d", &n); err != nil || n == 0 || s != "1/"+strconv.FormatUint(n, 10) {
			return fmt.Errorf("%q is none of off, errors, all, 1/N", s)
		}
		*a = AccessLog{errors: true, every: n}
	}
	return nil
}

// MarshalText implements encoding.TextMarshaler.
func (a AccessLog) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

func (a AccessLog) String() string {
	switch {
	case a.every == 1:
		return "all"
	case a.every > 1:
		return "1/" + strconv.FormatUint(a.every, 10)
	case a.errors:
		return "errors"
	default:
		return "off"
	}
}

// logs reports whether a request is logged.
func (o *observer) logs(code uint16, faulty bool) bool {
	a := o.settings.AccessLog
	if code >= http.StatusBadRequest || faulty {
		return a.errors
	}
	return a.every > 0 && o.turn.Add(1)%a.every == 0
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
	text = strings.ToValidUTF8(text[:most], "\uFFFD")
	end := min(len(text), most-len(mark))
	for end > 0 && end < len(text) && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + mark
}

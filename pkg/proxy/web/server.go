package web

import (
	"crypto/tls"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"
)

// server is a net/http server. Most new settings take effect within it; those that it reads itself need another
// one, on the same socket.
type server struct {
	*http.Server
	front   *Front
	queue   *connQueue
	tls     bool          // its connections begin with TLS
	http2   bool          // may speak HTTP/2: then the connections bound their idle time themselves (idling)
	idle    time.Duration // how long a connection may be idle; 0 is for ever
	retired atomic.Bool   // its connections close behind their next answer
}

// ServeHTTP implements http.Handler.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if c := connOfRequest(r); c != nil {
		if !c.asked.Load() { // a store for each request would cost more than the look
			c.asked.Store(true) // a drain waits for a new connection's first request
		}
		if r.ProtoMajor == 1 {
			outliving, end := c.outlivingHalfClose(r)
			defer end()
			r = outliving
		}
	}
	if s.leaves() && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
	}
	// Of the settings in force, also on a connection that another server's settings opened: a gate must hold at once.
	s.front.current.Load().handler.ServeHTTP(w, r)
}

// leaves reports whether a connection ends behind its next answer.
func (s *server) leaves() bool { return s.retired.Load() || s.front.leaving.Load() }

// sameServer is whether a server reads requests alike by both settings.
func sameServer(a, b *Settings) bool {
	return (a.TLS == nil) == (b.TLS == nil) && a.any(isGRPC) == b.any(isGRPC) && a.any(notGRPC) == b.any(notGRPC) &&
		a.Header == b.Header && a.Idle == b.Idle && a.MaxHeader == b.MaxHeader
}

// endsAll reports whether connections that were opened by the former settings may not go on for as long as they like:
// TLS begins or ends on the socket.
func endsAll(old, next *Settings) bool { return (old.TLS == nil) != (next.TLS == nil) }

func (f *Front) newServer(s Settings) *server {
	var protocols http.Protocols
	protocols.SetHTTP1(s.TLS != nil || s.any(notGRPC))
	protocols.SetHTTP2(s.TLS != nil)
	protocols.SetUnencryptedHTTP2(s.TLS == nil && s.any(isGRPC))
	made := &server{front: f, queue: newConnQueue(f.Addr()), tls: s.TLS != nil, idle: orNone(s.Idle)}
	made.Server = &http.Server{
		Handler:           made,
		Protocols:         &protocols,
		ReadHeaderTimeout: orNone(s.Header),
		MaxHeaderBytes:    s.MaxHeader,
		ErrorLog:          slog.NewLogLogger(handshakes{f.log.Handler(), f}, slog.LevelDebug),
		ConnContext:       withConn,
		HTTP2:             http2Config(),
	}
	if s.TLS != nil { // HandOff begins it; net/http only looks here for the protocols
		made.TLSConfig = &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	}
	if made.http2 = protocols.HTTP2() || protocols.UnencryptedHTTP2(); made.http2 {
		made.ConnState = idlingState
		made.boundFrames(s.Header)
	} else {
		made.IdleTimeout = made.idle
	}
	return made
}

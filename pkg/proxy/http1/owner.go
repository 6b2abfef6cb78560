package http1

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/idle"
)

// Owner is the program's side of a client's connection. The engine calls it in the loop's thread; it must not block.
type Owner interface {
	// Route returns the route for the next request. Where it is nil, the engine hands the connection off.
	Route() Route
	// Received counts bytes of requests that the engine served.
	Received(n int)
	// Sent counts bytes of answers that the engine wrote to the client's socket.
	Sent(n int)
	// Progress reports that a slow client has acknowledged more of them.
	Progress()
	// Retired reports whether the engine must close the connection behind the next answer, as in a drain.
	Retired() bool
	// HandOff takes over the connection. The engine does not use it any more.
	HandOff(Handoff)
	// Closed reports that the engine is about to close the descriptor.
	Closed()
}

// Route serves requests. The engine calls it in the loop's thread; it must not block.
type Route interface {
	// Begin starts a request: it sets Endpoint, Key and Added of x, or File. False has the engine hand the connection
	// off.
	Begin(x *Exchange) bool
	// Cancel undoes Begin: the engine hands the request off.
	Cancel(x *Exchange)
	// Ended reports how a request ended.
	Ended(x *Exchange, r Result)
	// Upstreams returns the idle connections to the route's endpoints.
	Upstreams() *Upstreams
}

// Endpoint is the endpoint that a request was given to.
type Endpoint interface {
	// Succeeded reports that the endpoint answered.
	Succeeded()
	// Release reports that the request does not use the endpoint any more.
	Release()
}

// File is an answer whose body the engine sends from a file, by way of the operating system's copy of it in memory.
type File interface {
	// AppendHeader appends the status line behind the version, and the header's lines but Date and Connection.
	AppendHeader(b []byte) []byte
	// Size is the body's, in bytes.
	Size() int64
	// InMemory is how many bytes of the body from an offset on are in memory, without waiting.
	InMemory(offset int64) (int64, error)
	// Load waits until the bytes at an offset are in memory, or until stop is closed, if it does not yet read them then.
	// A goroutine calls it; the engine calls nothing else of the file meanwhile.
	Load(offset int64, stop <-chan struct{}) error
	// Send sends n bytes from an offset on to a socket, or as many as the socket takes now; EAGAIN if it takes none, and
	// io.ErrUnexpectedEOF if the file has become shorter.
	Send(socket int, offset, n int64) (int64, error)
	// Close closes the file.
	Close()
}

// Result is how a request ended.
type Result struct {
	Code           int
	Sent, Expected int64 // bytes of the body
	Gone           bool  // the connection was closed before the client had taken the whole answer
	Broken         error // of reading the file, which broke the answer off
}

// CodeGone is the code of a request whose connection was closed before the answer began (nginx's 499).
const CodeGone = 499

// Limits are how long a client may take. Zero is for ever.
type Limits struct {
	Header time.Duration // for its first request
	Idle   time.Duration // between two requests
	Stall  time.Duration // to acknowledge something of an answer
}

// Handoff is a connection that has left the engine.
type Handoff struct {
	FD      int
	Early   []byte   // the bytes of the next request that were read
	Attempt *Attempt // nil unless the engine began to ask an endpoint for it
}

// Attempt is a request that the engine began to ask an endpoint.
type Attempt struct {
	Start    time.Time
	Endpoint Endpoint
	Upstream *PendingUpstream // nil: the owner has to connect
}

// PendingUpstream is an endpoint's connection to which a request was written, except for Unsent.
type PendingUpstream struct {
	FD       int
	Key      idle.Key
	Used     bool   // the connection has answered a request before
	Unsent   []byte // the part of the request that was not written
	Received []byte // the part of the answer that was read
	EOF      bool   // the endpoint closed its side behind Received, or the read failed
	Failure  error  // of the read if EOF is set, else of the write
}

// Exchange is a plain request with its answer. It is valid from [Route.Begin] until [Route.Ended] or Cancel returns.
type Exchange struct {
	Request Request
	Client  netip.Addr // without a zone
	Start   time.Time
	// The route sets Endpoint, Key and Added, or File.
	Endpoint Endpoint
	Key      idle.Key
	Added    []byte // header lines for the endpoint, each with its line end
	File     File

	conn    *Conn
	route   Route
	answer  answer
	request [mostRequest]byte
	size    int    // length of the request in request
	out     []byte // the request for the endpoint, later the answer or its head
	total   int64  // length of the answer, head and body
	written int64  // how much of total the client's socket has taken
	partial []byte // the part of the answer that has been read
	loads   int    // how often in a row the file's next part was loaded
	broken  error  // of reading the file
}

// Conn is the connection on which the request came.
func (x *Exchange) Conn() *Conn { return x.conn }

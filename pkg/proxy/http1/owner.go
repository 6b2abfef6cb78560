package http1

import (
	"net/netip"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/idle"
)

// Owner is what the engine knows of the program that a connection of a client belongs to. The engine calls it in its
// loop's thread, and it must not wait.
type Owner interface {
	// Route is what serves the next request; nil has the connection handed off.
	Route() Route
	// Received is told of bytes that were read and will not be handed off, Sent of such that the client's socket has
	// taken, and Progress that the client has taken some from there.
	Received(n int)
	Sent(n int)
	Progress()
	// Retired is whether the connection is to be closed behind the next answer.
	Retired() bool
	// HandOff is given the connection once the engine has let go of it.
	HandOff(Handoff)
	// Closed is told that the engine has closed the connection.
	Closed()
}

// Route serves requests. The engine calls it in its loop's thread, and it must not wait.
type Route interface {
	// Begin takes up a request: it sets x.Endpoint, x.Key and x.Added, or x.File. It is false where the request is for
	// the owner's other way, to which the connection is handed off then.
	Begin(x *Exchange) bool
	// HandedOff takes Begin back for a request that is handed off with the connection.
	HandedOff(x *Exchange)
	// Ended is told how a request ended. Where it is true, the connection waits for [Conn.Resume] before its next
	// request.
	Ended(x *Exchange, r Result) (waits bool)
	// Upstreams has the connections to the route's endpoints.
	Upstreams() *Upstreams
}

// Endpoint is what a request is given to, for as long as it is under way.
type Endpoint interface {
	// Succeeded is told of an answer; Release that the request is over.
	Succeeded()
	Release()
}

// File is an answer from a file that the operating system has in memory. What fails breaks the answer off.
type File interface {
	// AppendHeader appends the status line behind the version, and the header's lines but Date and Connection.
	AppendHeader(b []byte) []byte
	// Size is the body's, in bytes.
	Size() int64
	// InMemory is how many bytes of the body from an offset on are in memory. Where it is none, Load waits until there
	// are some. Load may be called beside the loop, but not beside Close.
	InMemory(offset int64) (int64, error)
	Load(offset int64) error
	// Send sends so many bytes from an offset on to a socket, or as many as the socket takes now (else EAGAIN).
	Send(socket int, offset, n int64) (int64, error)
	Close()
}

// Result is how a request ended.
type Result struct {
	Code           int
	Sent, Expected int64 // bytes of the body
	Gone           bool  // the client did not take all of it
}

// CodeGone stands for the answer to a client that has gone before there was one. It is nginx's.
const CodeGone = 499

// Limits are how long a client may take. Zero is for ever.
type Limits struct {
	Header time.Duration // for its first request
	Idle   time.Duration // between two requests
	Stall  time.Duration // to take something of an answer
}

// Handoff is a connection that has left the engine.
type Handoff struct {
	FD      int
	Early   []byte   // what was read of the next request
	Attempt *Attempt // nil where nothing was begun for that request
}

// Attempt is a request that the engine began to ask an endpoint.
type Attempt struct {
	Start    time.Time
	Endpoint Endpoint
	Upstream *Asked // nil: a new connection is to be opened
}

// Asked is a connection to an endpoint to which a request has been written, but for the part Unsent.
type Asked struct {
	FD     int
	Key    idle.Key
	Used   bool   // it has answered a request before
	Unsent []byte // of the request
	Early  []byte // what was read of the answer
	Ended  bool   // the answer ended behind Early, in order unless there is a failure
	// Failure is of reading, if the answer ended, else of writing.
	Failure error
}

// Exchange is a plain request with its answer. It is valid from [Route.Begin] until [Route.Ended] or HandedOff returns.
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
	in      [mostRequest]byte
	size    int    // how much of in is the request
	out     []byte // to be written: the request, then the answer or its head
	total   int64  // of the answer in bytes, head and body
	written int64  // of it
	reply   []byte // what has come of the answer; the rest is waited for
}

// Conn is the connection on which the request came.
func (x *Exchange) Conn() *Conn { return x.conn }

package http1

import (
	"net/netip"
	"time"
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
	// Streaming begins an answer that did not come whole with its head, and returns how many bytes of it may be read at a
	// time, at most Piece. endpoint and client are the descriptors; length is -1 if it is unknown.
	Streaming(endpoint, client int, length int64) (piece int)
	// Streamed ends such an answer. The endpoint's connection is still open if it is kept.
	Streamed(kept bool)
	// Retired reports whether the engine must close the connection behind the next answer, as in a drain.
	Retired() bool
	// HandOff takes over the connection, of which bytes of the next request were read. No endpoint was asked for it. The
	// engine does not use the connection any more.
	HandOff(fd int, early []byte)
	// Closed reports that the engine is about to close the descriptor.
	Closed()
}

// Route serves requests. The engine calls it in the loop's thread; it must not block.
type Route interface {
	// Begin starts a request: it sets Endpoint, Key, Added and the times of x, or File. False has the engine hand the
	// connection off.
	Begin(x *Exchange) bool
	// Failed reports that the endpoint did not take the request: dialing failed, or its connection broke before there was
	// an answer. It releases the endpoint, which is not the request's any more. After a failed dial it may set another
	// one, with Key, and return nil; else it returns what the client is answered.
	Failed(x *Exchange, dialing bool, err error) *Refusal
	// Progressed reports, often, how far a request has got: that there is no answer yet, or how much of it was sent.
	Progressed(x *Exchange, r Result)
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

// Refusal is an answer of the proxy's own.
type Refusal struct {
	Code  int
	Lines string // of the header, each with its line end, but for Content-Length, Date and Connection
	Text  string
}

// File is an answer whose body the engine sends from a file, by way of the operating system's copy of it in memory.
type File interface {
	// AppendHeader appends the status line behind the version, and the header's lines but Date and Connection.
	AppendHeader(b []byte) []byte
	// Size is the body's, in bytes.
	Size() int64
	// InMemory is how many bytes of the body from an offset on are in memory, without waiting.
	InMemory(offset int64) (int64, error)
	// Load waits until the bytes at an offset are in memory. stop ends the wait for its turn, not a read that has begun.
	// A goroutine calls it; the engine calls nothing else of the file meanwhile.
	Load(offset int64, stop <-chan struct{}) error
	// Send sends n bytes from an offset on to a socket, or as many as the socket takes now; EAGAIN if it takes none, and
	// io.ErrUnexpectedEOF if the file has become shorter.
	Send(socket int, offset, n int64) (int64, error)
	// Close closes the file.
	Close()
}

// Result is how a request ended, or how far its answer has got.
type Result struct {
	Code           int
	Sent, Expected int64  // bytes of the body; 0 is expected where the endpoint told no length
	Gone           bool   // the connection was closed before the client had taken the whole answer
	Stalled        bool   // it is gone since the client took nothing for Limits.Stall
	Broken         error  // of reading the file or the endpoint, which broke the answer off
	Location       string // where the endpoint redirected the client; empty if it did not
}

// CodeGone is the code of a request whose connection was closed before the answer began (nginx's 499).
const CodeGone = 499

// Limits are how long a client may take. Zero is for ever.
type Limits struct {
	Header time.Duration // for its first request
	Idle   time.Duration // between two requests
	Stall  time.Duration // to acknowledge something of an answer
}

// Exchange is a plain request with its answer. It is valid from [Route.Begin] until [Route.Ended] returns.
type Exchange struct {
	Request Request
	Client  netip.Addr // without a zone
	Start   time.Time
	// The route sets Endpoint, Key and Added, or File.
	Endpoint Endpoint
	Key      Key
	Added    []byte // header lines for the endpoint, each with its line end
	File     File
	// Dial and Response are how long the endpoint may take to connect, and to answer; 0 is for ever.
	Dial, Response time.Duration

	conn     *Conn
	route    Route
	raw      [mostRequest]byte
	size     int // length of the request in raw
	answer   answer
	body     body   // of the answer, as it comes
	in       []byte // the part of the answer's head that has come
	heads    int    // length of the interim answers before it
	out      []byte // the request for the endpoint, later the part of the answer for the client that is under way
	sent     int    // how much of out was sent
	payload  int64  // bytes of the answer's body that were read
	newConn  bool   // the request goes on a new connection
	begun    bool   // the answer's head is known
	streamed bool   // Owner.Streaming was called, and Streamed was not yet
	piece    int    // how many bytes of it may be read at a time
	loads    int    // how often in a row the file's next part was loaded
	stalled  bool   // its client took nothing for Limits.Stall
	broken   error  // of reading the file, or the endpoint
	location string // Result.Location
}

// Conn is the connection on which the request came.
func (x *Exchange) Conn() *Conn { return x.conn }

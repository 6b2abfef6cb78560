// Package http1 answers plain HTTP/1.1 requests in an event loop, where no goroutine has to be woken for a request: for
// a small one that is half of the cost, and a goroutine of its own is more than half of a connection's.
//
// A plain request is a GET whose head says nothing that is not simply passed on, or such a POST with a length and its
// body right behind it, that comes whole. A plain answer has a length, is short, and ends where it says. The engine
// serves such a request from an endpoint that takes it and answers soon, or from a file that is in memory. Everything
// else it hands off to its owner, with the bytes that were read, once and for good. So the engine decides nothing about
// bad input, nor about which endpoint is to blame.
//
// A request enters at [Conn.Read]. A [Route] chooses the endpoint or the file, and is told how the request ended; its
// answer leaves by the same [Conn]. [Owner] and Route are all that the engine knows of the program around it.
//
// Not its job: accepting connections, limits, metrics, logs, and what is not plain.
package http1

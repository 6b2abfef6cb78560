// Package http1 answers plain HTTP/1.1 requests in an event loop. Waking a goroutine would double the cost of a small
// request, and starting one for each connection would more than double the cost of a short connection.
//
// A plain request is a GET whose headers the proxy passes on or drops without a decision, or such a POST with a
// Content-Length; one read gets all of it. A plain answer has a Content-Length, is short, and has no bytes behind it.
// The engine asks an endpoint that connects and answers soon, or answers with a small file. It hands every other
// request off to its owner, with the connection and the bytes that were read; the connection does not come back. So
// the engine never judges bad input, and never blames an endpoint.
//
// A request enters at [Conn.Read]. A [Route] chooses the endpoint or the file, and is told how the request ended; its
// answer leaves by the same [Conn]. [Owner] and Route are all that the engine knows of the program around it.
//
// Accepting connections, limits, metrics, logs and all other requests belong to the owner.
package http1

// Package http1 answers plain HTTP/1 requests in an event loop. Waking a goroutine would double the cost of a small
// request, and starting one for each connection would more than double the cost of a short connection.
//
// A plain request is a GET whose headers the proxy passes on or drops without a decision, or such a POST with a
// Content-Length; one read gets all of it. The engine asks an endpoint for it, or answers with a small file. It hands a
// connection with any other request off to its owner, with the bytes that were read, before an endpoint was asked; the
// connection does not come back. So the engine never judges bad input. What it has begun it ends: it waits for an
// endpoint that is slow, asks another one if the first takes no connection, passes a long answer on as fast as the
// client takes it, and tells the client when all fails.
//
// A request enters at [Conn.Read]. What a connection waits for, and does next, is one state with a table of events
// (conn.go). A [Route] chooses the endpoint or the file, judges failures, and is told how the request ended; the answer
// leaves by the same [Conn]. [Owner] and Route are all that the engine knows of the program around it.
//
// Accepting connections, limits, metrics, logs and all other requests belong to the owner.
package http1

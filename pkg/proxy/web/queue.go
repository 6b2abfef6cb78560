package web

import (
	"context"
	"errors"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/tinkerbell/stack/pkg/edge/reply"
	"github.com/tinkerbell/stack/pkg/proxy/http1"
	"github.com/tinkerbell/stack/pkg/proxy/queue"
)

// queued serves the requests of as many machines as the route's queue lets in. The others wait, with their connections
// open: firmware takes a 503 for the end of its boot. It stands behind the gate, so that no request waits that is
// refused anyway.
func queued(next http.Handler, s *Settings) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !s.Queue.On() {
			next.ServeHTTP(w, r)
			return
		}
		leave, err := s.Queue.Enter(queue.Request{
			From: Client(r, s.Trusted), Done: patienceOf(r).Done(), While: waiting(w, r), Retries: s.retries(r.UserAgent()),
		})
		switch {
		case err == nil:
			defer leave()
			next.ServeHTTP(w, r)
		case errors.Is(err, queue.ErrBusy), errors.Is(err, queue.ErrFull):
			after := int(math.Ceil(s.Queue.RetryAfter().Seconds()))
			w.Header().Set("Retry-After", strconv.Itoa(after))
			reply.Refuse(w, r, http.StatusServiceUnavailable, reply.ResourceExhausted, "busy: "+err.Error())
		default:
			w.WriteHeader(http1.CodeGone) // nobody reads it; it is for the counters
		}
	})
}

// patienceOf is the context of a request that waits for its turn. It ends with the client's side: firmware that has
// given up must not be served before others that wait.
func patienceOf(r *http.Request) context.Context {
	if ctx, ok := r.Context().Value(serversContext{}).(context.Context); ok {
		return ctx
	}
	return r.Context()
}

// retries is whether a client is known to come again when it is told to: by its User-Agent.
func (s *Settings) retries(agent string) bool {
	for _, prefix := range s.RetryAgents {
		if strings.HasPrefix(agent, prefix) {
			return true
		}
	}
	return false
}

// waiting is what is done while a request waits: its connection, or stream, is not one that does not get on.
func waiting(w http.ResponseWriter, r *http.Request) func() error {
	c, _ := r.Context().Value(below{}).(*conn)
	seen, _ := w.(*response)
	return func() error {
		if seen != nil {
			seen.share.stream.Touch()
		}
		if c != nil && r.ProtoMajor == 1 {
			if c.lost() {
				return net.ErrClosed
			}
			c.lease.Touch()
		}
		return nil
	}
}

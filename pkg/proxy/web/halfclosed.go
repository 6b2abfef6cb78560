package web

import (
	"context"
	"net/http"
	"time"

	"github.com/tinkerbell/stack/pkg/proxy/sock"
)

// lostCheck is how often is looked whether a client that has ended its side is still there.
const lostCheck = 250 * time.Millisecond

// outlivingHalfClose gives a request a context that lasts until its client is gone. That of net/http's server ends
// where the client ends its side, and may read on: half of a TCP connection says nothing about the other one (RFC 9293,
// section 3.6). The caller must call the function that is returned, at the request's end.
func (c *conn) outlivingHalfClose(r *http.Request) (*http.Request, func()) {
	before := r.Context()
	ctx, cancel := context.WithCancel(context.WithoutCancel(before))
	watched := make(chan struct{})
	stop := context.AfterFunc(before, func() {
		defer close(watched)
		c.awaitLoss(ctx.Done())
		cancel()
	})
	return r.WithContext(ctx), func() {
		cancel()
		if !stop() {
			<-watched
		}
	}
}

// awaitLoss waits until the connection is closed or reset, or done. A client that closes without a reset is noticed
// when something is sent to it, by the kernel's keepalive at the latest.
func (c *conn) awaitLoss(done <-chan struct{}) {
	ticker := time.NewTicker(lostCheck)
	defer ticker.Stop()
	for !c.lost() && !c.disconnected() {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
	}
}

// disconnected reports whether the socket has no connection any more.
func (c *conn) disconnected() bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := true
	_ = raw.Control(func(fd uintptr) { gone = sock.Disconnected(int(fd)) })
	return gone
}

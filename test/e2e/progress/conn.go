package progress

import (
	"context"
	"net"
	"sync"
	"time"
)

// piece is how much of a write is counted at a time.
const piece = 64 << 10

// Conn is a connection under watch: a byte in either direction is a movement. When nothing has moved for the patience,
// reads and writes fail with a [*Stalled].
type Conn struct {
	net.Conn
	watch *Watch
	ctx   context.Context
	ended sync.WaitGroup
}

// Over puts a connection under watch, until it is closed. Deadlines that it has are taken away.
func Over(c net.Conn, patience Patience) (*Conn, error) {
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	over := &Conn{Conn: c}
	over.ctx, over.watch = Begin(context.Background(), patience)
	over.ended.Go(func() {
		<-over.ctx.Done()
		_ = c.SetDeadline(time.Unix(1, 0))
	})
	return over, nil
}

// Read implements [net.Conn].
func (c *Conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.watch.Bytes(n)
	return n, c.watch.Why(c.ctx, err)
}

// Write implements [net.Conn]. It counts what the kernel takes piece by piece: the whole may take longer than the
// patience.
func (c *Conn) Write(b []byte) (written int, err error) {
	for err == nil && written < len(b) {
		var n int
		n, err = c.Conn.Write(b[written:min(len(b), written+piece)])
		c.watch.Sent(n)
		written += n
	}
	return written, c.watch.Why(c.ctx, err)
}

// Close closes the connection and ends the watch.
func (c *Conn) Close() error {
	err := c.Conn.Close()
	c.watch.End()
	c.ended.Wait()
	return err
}

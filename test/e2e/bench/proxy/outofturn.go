package proxy

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tinkerbell/stack/test/e2e/bench/rounds"
)

// outOfTurn is a backend that talks out of turn: it answers with the client's address, as X-Real-IP tells it, and the
// path, and sends one of ten answers again, 50 us to 5 ms later.
type outOfTurn struct {
	listener     net.Listener
	conns, again atomic.Int64
	all          sync.WaitGroup
}

const outOfTurnAddr = "127.0.0.3:7171"

func startOutOfTurn(ctx context.Context) (*outOfTurn, error) {
	var config net.ListenConfig
	config.SetMultipathTCP(false)
	listener, err := config.Listen(ctx, "tcp", outOfTurnAddr)
	if err != nil {
		return nil, err
	}
	o := &outOfTurn{listener: listener}
	o.all.Go(func() {
		for {
			conn, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				o.conns.Add(1)
				o.all.Go(func() { o.serve(conn) })
			}
		}
	})
	return o, nil
}

// stop waits for the connections: the candidates have ended.
func (o *outOfTurn) stop() {
	_ = o.listener.Close()
	o.all.Wait()
}

func (o *outOfTurn) serve(conn net.Conn) {
	defer conn.Close()
	var late sync.WaitGroup
	defer late.Wait()
	reader := bufio.NewReader(conn)
	for {
		request, err := http.ReadRequest(reader)
		if err != nil {
			return
		}
		body := request.Header.Get("X-Real-IP") + " " + request.URL.Path
		answer := fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
		if _, err := conn.Write(answer); err != nil {
			return
		}
		if rand.IntN(10) == 0 {
			late.Go(func() {
				time.Sleep(50*time.Microsecond + time.Duration(rand.Int64N(int64(4950*time.Microsecond))))
				if _, err := conn.Write(answer); err == nil {
					o.again.Add(1)
				}
			})
		}
		if request.Close {
			return
		}
	}
}

// Of measureOutOfTurn: so many requests of so many clients.
const (
	outOfTurnRequests = 12_800
	outOfTurnClients  = 16
)

// measureOutOfTurn counts clients that get another's answer, with a backend that talks out of turn.
func (b *bench) measureOutOfTurn(ctx context.Context, name string) (rounds.Sample, error) {
	backend, err := startOutOfTurn(ctx)
	if err != nil {
		return nil, err
	}
	defer backend.stop()
	c, err := startCandidate(ctx, b, name, outOfTurnAddr)
	if err != nil {
		return nil, err
	}
	defer c.stop()
	var seen strayAnswers
	var all sync.WaitGroup
	for n := range outOfTurnClients {
		all.Go(func() { seen.ask(ctx, c.http, n) })
	}
	all.Wait()
	return rounds.Sample{
		"requests":            outOfTurnRequests,
		"foreign_answers":     float64(seen.foreign.Load()),
		"own_earlier_answers": float64(seen.own.Load()),
		"failed_requests":     float64(seen.failed.Load()),
		"second_answers":      float64(backend.again.Load()),
		"backend_connections": float64(backend.conns.Load()),
	}, ctx.Err()
}

// strayAnswers counts answers to other clients' requests, to earlier ones of the same client, and requests without an
// answer.
type strayAnswers struct{ foreign, own, failed atomic.Int64 }

// ask sends the requests of client n one after another, on a new connection after each failure.
func (o *strayAnswers) ask(ctx context.Context, address string, n int) {
	buffer := make([]byte, 4096)
	var conn net.Conn
	for i := 0; i < outOfTurnRequests/outOfTurnClients && ctx.Err() == nil; i++ {
		if conn == nil {
			var err error
			if conn, err = dialer(machine(n)).DialContext(ctx, "tcp", address); err != nil {
				o.failed.Add(1)
				continue
			}
			_ = conn.SetDeadline(time.Now().Add(time.Minute))
		}
		path := fmt.Sprintf("/%d/%d", n, i)
		body, err := askOnce(conn, path, buffer)
		if err != nil {
			o.failed.Add(1)
			_ = conn.Close()
			conn = nil
			continue
		}
		switch to, about, _ := strings.Cut(string(body), " "); {
		case to != machine(n).String():
			o.foreign.Add(1)
		case about != path:
			o.own.Add(1)
		}
	}
	if conn != nil {
		_ = conn.Close()
	}
}

func askOnce(conn net.Conn, path string, buffer []byte) ([]byte, error) {
	if _, err := io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: bench\r\n\r\n"); err != nil {
		return nil, err
	}
	code, body, err := readAnswer(conn, buffer)
	if err == nil && code != http.StatusOK {
		err = fmt.Errorf("status %d", code)
	}
	return body, err
}

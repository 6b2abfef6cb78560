package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// tftpSize is what a TFTP transfer is about: some 140 blocks.
const tftpSize = 200_000

// exchangeTimeout is how long one answer may take, and for how long nothing may move in a transfer: others may have the
// processors for seconds.
const exchangeTimeout = time.Minute

// patience is that of transfers.
func patience() progress.Patience { return progress.Patience{Quiet: exchangeTimeout} }

// load is one kind of traffic: what its workers do again and again.
type load struct {
	name    string
	workers int
	pause   time.Duration
	do      func(ctx context.Context, worker int) error
	stable  bool // its backend is never killed: nothing excuses a failure
}

func (r *run) loads() []load {
	return []load{
		{"tcp", 3, 100 * time.Millisecond, r.doTCP, false},
		{"tcp-bulk", 1, 3 * time.Second, r.doBulk, false},
		{"tcp-long", 3, time.Second, r.doLong, false},
		{"http", 4, 50 * time.Millisecond, r.doHTTP(), false},
		{"files", 2, 300 * time.Millisecond, r.doFiles, false},
		{"grpc-pass", 2, time.Second, r.doStream(portPass), false},
		{"grpc", 2, time.Second, r.doStream(portGRPC), false},
		{"grpc-idle-pass", 1, time.Second, r.doIdle(portIdlePass), true},
		{"grpc-idle", 1, time.Second, r.doIdle(portIdleGRPC), true},
		{"tftp", 3, 500 * time.Millisecond, r.doTFTP, false},
		{"syslog", 8, 200 * time.Millisecond, r.doSyslog, false},
		{"udp", 4, 200 * time.Millisecond, r.doUDP, false},
		{"rude", 2, 200 * time.Millisecond, r.doRude, false},
	}
}

// worker repeats a load's exchange until ctx is done. One that fails then counts for nothing: ctx may have cut it off.
// A long connection is brought to its end, which counts: in a short soak there may be no other.
func (r *run) worker(ctx context.Context, l load, i int) {
	for ctx.Err() == nil {
		begun := time.Now()
		err := l.do(ctx, i)
		if err != nil && ctx.Err() != nil {
			return
		}
		switch {
		case l.name == "syslog" && err == nil: // counted where it arrives
			if word, lost := r.tally.lost(time.Now().Add(-10 * time.Second)); lost {
				r.fail("syslog line %s was lost", word)
			}
		case r.tally.count(l.name, begun, err, !l.stable):
			r.fail("%s: after %s: %v", l.name, time.Since(begun).Round(time.Millisecond), err)
		}
		pause(ctx, l.pause)
	}
}

func address(port int) string { return fmt.Sprintf("%s:%d", proxyIP, port) }

// dial connects for one exchange that is a question and an answer. What carries more goes through [progress.Over].
func dial(port int) (*net.TCPConn, error) {
	conn, err := net.DialTimeout("tcp", address(port), exchangeTimeout)
	if err != nil {
		return nil, err
	}
	return conn.(*net.TCPConn), conn.SetDeadline(time.Now().Add(exchangeTimeout))
}

// echo sends bytes, ends its direction, and wants them back.
func echo(sent []byte) error {
	plain, err := dial(portTCP)
	if err != nil {
		return err
	}
	conn, err := progress.Over(plain, patience())
	if err != nil {
		return errors.Join(err, plain.Close())
	}
	defer conn.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- errors.Join(err, plain.CloseWrite())
	}()
	got, err := io.ReadAll(conn)
	if err == nil && !bytes.Equal(got, sent) {
		err = fmt.Errorf("got %d bytes of %d", len(got), len(sent))
	}
	if err != nil {
		_ = plain.Close()
	}
	return errors.Join(err, <-wrote)
}

func (r *run) doTCP(context.Context, int) error { return echo(r.file[:1+rand.IntN(64<<10)]) }

func (r *run) doBulk(context.Context, int) error { return echo(bytes.Repeat(r.file, 8)) }

// doLong is a connection that says a little each second.
func (r *run) doLong(ctx context.Context, _ int) error {
	conn, err := dial(portTCP)
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer := make([]byte, 100)
	for range 15 {
		_ = conn.SetDeadline(time.Now().Add(exchangeTimeout))
		if _, err := conn.Write(r.file[:len(buffer)]); err != nil {
			return err
		}
		if _, err := io.ReadFull(conn, buffer); err != nil {
			return err
		}
		pause(ctx, time.Second)
	}
	return nil
}

// doHTTP asks for one thing after the other, on kept connections mostly.
func (r *run) doHTTP() func(context.Context, int) error {
	client := &http.Client{Transport: progress.Transport{
		RoundTripper: &http.Transport{IdleConnTimeout: 5 * time.Second}, Patience: patience(),
	}}
	return func(ctx context.Context, worker int) error {
		base := "http://" + address(portHTTP)
		method, path, sent, want := http.MethodGet, "/who", []byte(nil), []byte(proxyIP)
		switch rand.IntN(8) {
		case 0:
			method, path, sent = http.MethodPost, "/echo", r.file[:rand.IntN(200<<10)]
			want = sent
		case 1:
			path, want = "/stream", []byte("event 0\nevent 1\nevent 2\nevent 3\nevent 4\n")
		}
		request, err := http.NewRequestWithContext(ctx, method, base+path, bytes.NewReader(sent))
		if err != nil {
			return err
		}
		request.Header.Set("X-Forwarded-For", "192.0.2.66")
		request.Close = rand.IntN(10) == 0
		return fetch(client, request, http.StatusOK, want)
	}
}

func fetch(client *http.Client, request *http.Request, code int, want []byte) error {
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != code || !bytes.Equal(got, want) {
		return fmt.Errorf("failed to get %s: %s with %d bytes, begin %.40q", request.URL.Path, response.Status,
			len(got), got)
	}
	return nil
}

func (r *run) doFiles(ctx context.Context, _ int) error {
	transport := &http.Transport{}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: progress.Transport{RoundTripper: transport, Patience: patience()}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address(portFiles)+"/vmlinuz", nil)
	if err != nil {
		return err
	}
	if rand.IntN(2) == 0 {
		return fetch(client, request, http.StatusOK, r.file)
	}
	request.Header.Set("Range", "bytes=1000-300999")
	return fetch(client, request, http.StatusPartialContent, r.file[1000:301000])
}

// open makes a client of its own with one stream.
func open(ctx context.Context, port int) (grpc.ClientStream, func(), error) {
	conn, err := grpc.NewClient("passthrough:///"+address(port), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(text{})))
	if err != nil {
		return nil, nil, err
	}
	stream, err := conn.NewStream(ctx, &talk, "/soak.Echo/Talk", grpc.WaitForReady(true))
	if err != nil {
		_ = conn.Close()
		return nil, nil, fmt.Errorf("failed to open stream: %w", err)
	}
	return stream, func() { _ = conn.Close() }, nil
}

// finish ends a stream, whose server must say that all is well.
func finish(stream grpc.ClientStream) error {
	if err := stream.CloseSend(); err != nil {
		return fmt.Errorf("failed to end stream: %w", err)
	}
	var more string
	if err := stream.RecvMsg(&more); !errors.Is(err, io.EOF) {
		return fmt.Errorf("failed to end stream: got %.20q, %w", more, err)
	}
	return nil
}

func (r *run) doStream(port int) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		ctx, watch := progress.Begin(ctx, patience())
		defer watch.End()
		stream, done, err := open(ctx, port)
		if err != nil {
			return watch.Why(ctx, err)
		}
		defer done()
		for i := range 20 {
			if err := say(stream, string(r.file[:1+rand.IntN(100<<10)])); err != nil {
				return watch.Why(ctx, err)
			}
			watch.Moved(fmt.Sprintf("message %d was answered", i+1))
			pause(ctx, 250*time.Millisecond)
		}
		return watch.Why(ctx, finish(stream))
	}
}

// doIdle is a stream that says something, is silent for long, and is used again.
func (r *run) doIdle(port int) func(context.Context, int) error {
	return func(ctx context.Context, _ int) error {
		stream, done, err := open(ctx, port)
		if err != nil {
			return err
		}
		defer done()
		if err := say(stream, "before"); err != nil {
			return err
		}
		pause(ctx, r.Idle)
		if err := say(stream, "after"); err != nil {
			return fmt.Errorf("after %s of silence: %w", r.Idle, err)
		}
		return finish(stream)
	}
}

func (r *run) doTFTP(ctx context.Context, _ int) error {
	ctx, watch := progress.Begin(ctx, patience())
	defer watch.End()
	conn, err := dialUDP(portTFTP)
	if err != nil {
		return err
	}
	defer conn.Close()
	got, err := netboot.ReadFileFunc(ctx, conn, "snp.efi", watch.Bytes)
	if err == nil && !bytes.Equal(got, r.file[:tftpSize]) {
		err = fmt.Errorf("got %d bytes that differ", len(got))
	}
	return err
}

// doSyslog sends a line from an address of the worker's own.
func (r *run) doSyslog(_ context.Context, worker int) error {
	local := &net.UDPAddr{IP: net.IPv4(127, 0, 3, byte(worker+1))}
	conn, err := net.DialUDP("udp", local, &net.UDPAddr{IP: net.ParseIP(proxyIP), Port: portSyslog})
	if err != nil {
		return err
	}
	defer conn.Close()
	word := fmt.Sprintf("%d-%x", worker, rand.Uint64())
	r.tally.sent(word)
	_, err = fmt.Fprintf(conn, "<30>Oct  1 22:14:15 m%d dockerd[412]: line %s", worker, word)
	return err
}

// doUDP has ten exchanges on one port, each tried again as clients of UDP do.
func (r *run) doUDP(context.Context, int) error {
	conn, err := dialUDP(portUDP)
	if err != nil {
		return err
	}
	defer conn.Close()
	buffer := make([]byte, 65536)
	for range 10 {
		sent := r.file[:1+rand.IntN(1400)]
		for try := 0; ; try++ {
			if _, err := conn.Write(sent); err != nil {
				return err
			}
			_ = conn.SetReadDeadline(time.Now().Add(2 * time.Second))
			n, err := conn.Read(buffer)
			if err == nil && bytes.Equal(buffer[:n], sent) {
				break
			}
			if try == 4 {
				return fmt.Errorf("failed to get a datagram back: got %d bytes: %w", n,
					errors.Join(err, os.ErrDeadlineExceeded))
			}
		}
	}
	return nil
}

// doRude does what a sane client does not; it must leave nothing behind.
func (r *run) doRude(ctx context.Context, _ int) error {
	switch rand.IntN(8) {
	case 0: // gone at once
		return leave(portTCP, "")
	case 1: // torn in the midst
		return leave(portTCP, string(r.file[:300<<10]))
	case 2: // a header that never ends, until the proxy closes
		conn, err := dial(portHTTP)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: h\r\nX-Slow: ")
		_, err = io.Copy(io.Discard, conn)
		return err
	case 3:
		return leave(portHTTP, "GET /stream HTTP/1.1\r\nHost: h\r\n\r\n")
	case 4:
		return leave(portGRPC, "GET / HTTP/1.1\r\nHost: h\r\n\r\n")
	case 5:
		return leave(portGRPC, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
	case 6:
		for _, text := range []string{"\x00", "\x00\x01snp.efi\x00octet\x00", "\x00\x02x\x00octet\x00", "\x00\x09"} {
			if err := shout(portTFTP, text); err != nil {
				return err
			}
		}
	case 7:
		for _, port := range []int{portUDP, portTFTP} {
			if err := shout(port, string(r.file[:65507])); err != nil {
				return err
			}
		}
	}
	return nil
}

// leave sends something and resets the connection.
func leave(port int, text string) error {
	conn, err := dial(port)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, _ = io.WriteString(conn, text)
	return conn.SetLinger(0)
}

func shout(port int, text string) error {
	conn, err := dialUDP(port)
	if err != nil {
		return err
	}
	defer conn.Close()
	_, err = io.WriteString(conn, text)
	return err
}

// dialUDP takes a port below those that the kernel hands out. Client and proxy share the loopback here: a late datagram
// to a client that has gone would reach a socket of the proxy that was given its port.
func dialUDP(port int) (*net.UDPConn, error) {
	for {
		local := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 10000 + rand.IntN(20000)}
		conn, err := net.DialUDP("udp", local, &net.UDPAddr{IP: net.ParseIP(proxyIP), Port: port})
		if !errors.Is(err, syscall.EADDRINUSE) {
			return conn, err
		}
	}
}

// pattern is bytes that do not repeat soon.
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>9 ^ i>>3 ^ i*7)
	}
	return b
}

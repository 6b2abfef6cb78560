// Command traffic is what machines have under way while the pod behind the service drains: a slow download, a slow
// TFTP transfer and a gRPC connection that asks again and again. It prints "under way" once all three are, and then how
// each ended. It fails unless both transfers end whole, and the connection lasts until they have.
package main

import (
	"context"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"google.golang.org/grpc"

	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/progress"
	"github.com/tinkerbell/stack/test/e2e/tink"
)

// traffic is what was asked for.
type traffic struct {
	service string
	file    string
	digest  string
	loader  string
	seconds float64
	quiet   time.Duration
	begun   sync.WaitGroup
	start   time.Time
}

func main() {
	t := &traffic{}
	flag.StringVar(&t.service, "service", "192.0.2.2", "`address` of the service")
	flag.StringVar(&t.file, "file", "debian.raw", "OS `file` to download")
	flag.StringVar(&t.digest, "sha512", "", "its `digest`")
	flag.StringVar(&t.loader, "loader", "undionly.kpxe", "`file` to read by TFTP; empty: none")
	flag.Float64Var(&t.seconds, "seconds", 8, "how long each transfer takes")
	flag.DurationVar(&t.quiet, "quiet", 45*time.Second, "how long a transfer may get nothing new, and a call no answer")
	flag.Parse()
	if err := t.run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "traffic:", err)
		os.Exit(1)
	}
}

func (t *traffic) run(ctx context.Context) error {
	t.start = time.Now()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var transfers, all sync.WaitGroup
	var faults [3]error
	begin := func(i int, work func(context.Context, func()) error, group *sync.WaitGroup) {
		t.begun.Add(1)
		begun := sync.OnceFunc(t.begun.Done)
		all.Add(1)
		group.Go(func() {
			defer all.Done()
			if faults[i] = work(ctx, begun); faults[i] != nil {
				fmt.Printf("%5.1f s  failed: %v\n", time.Since(t.start).Seconds(), faults[i])
			}
			begun()
		})
	}
	whole := make(chan struct{})
	begin(0, t.download, &transfers)
	if t.loader != "" {
		begin(1, t.tftp, &transfers)
	}
	begin(2, func(ctx context.Context, begun func()) error { return t.stream(ctx, begun, whole) }, &sync.WaitGroup{})
	t.begun.Wait()
	t.say("under way")
	transfers.Wait()
	close(whole)
	all.Wait()
	return errors.Join(faults[:]...)
}

func (t *traffic) say(format string, args ...any) {
	fmt.Printf("%5.1f s  %s\n", time.Since(t.start).Seconds(), fmt.Sprintf(format, args...))
}

// download reads in small pieces with pauses between, through a receive buffer so small that the sender waits.
func (t *traffic) download(ctx context.Context, begun func()) error {
	dial := func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err == nil {
			err = conn.(*net.TCPConn).SetReadBuffer(64 << 10)
		}
		return conn, err
	}
	client := &http.Client{Transport: progress.Transport{
		RoundTripper: &http.Transport{DialContext: dial}, Patience: progress.Patience{Quiet: t.quiet},
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+t.service+":8080/"+t.file, nil)
	if err != nil {
		return fmt.Errorf("failed to download: %w", err)
	}
	response, err := client.Do(request)
	if err != nil {
		return fmt.Errorf("failed to download: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("failed to download: %s", response.Status)
	}
	const pieces = 100
	hash := sha512.New()
	var size int64
	for size < response.ContentLength {
		n, err := io.CopyN(hash, response.Body, min(response.ContentLength/pieces+1, response.ContentLength-size))
		size += n
		if err != nil {
			return fmt.Errorf("failed to download: after %d of %d bytes: %w", size, response.ContentLength, err)
		}
		begun()
		time.Sleep(time.Duration(t.seconds / pieces * float64(time.Second)))
	}
	if got := hex.EncodeToString(hash.Sum(nil)); got != t.digest {
		return fmt.Errorf("failed to download: SHA-512 is %s", got)
	}
	t.say("the download is whole: %d bytes", size)
	return nil
}

// slow pauses before each datagram that it sends, and counts them.
type slow struct {
	net.Conn
	pause time.Duration
	sent  int
	begun func()
}

func (s *slow) Write(b []byte) (int, error) {
	if s.sent++; s.sent > 3 && s.begun != nil {
		s.begun()
	}
	time.Sleep(s.pause)
	return s.Conn.Write(b)
}

func (t *traffic) tftp(ctx context.Context, begun func()) error {
	addr := net.JoinHostPort(t.service, "69")
	conn, err := new(net.Dialer).DialContext(ctx, "udp", addr)
	if err != nil {
		return fmt.Errorf("failed to reach 69/udp: %w", err)
	}
	defer func() { _ = conn.Close() }()
	counted := &slow{Conn: conn}
	quick, err := t.read(ctx, counted)
	if err != nil {
		return err
	}
	again, err := new(net.Dialer).DialContext(ctx, "udp", addr)
	if err != nil {
		return fmt.Errorf("failed to reach 69/udp: %w", err)
	}
	defer func() { _ = again.Close() }()
	pause := time.Duration(t.seconds / float64(counted.sent) * float64(time.Second))
	content, err := t.read(ctx, &slow{Conn: again, pause: pause, begun: begun})
	if err != nil {
		return err
	}
	if len(content) != len(quick) {
		return fmt.Errorf("failed to read %s by TFTP: got %d of %d bytes", t.loader, len(content), len(quick))
	}
	t.say("the TFTP transfer is whole: %d bytes", len(content))
	return nil
}

// read reads the loader by TFTP.
func (t *traffic) read(ctx context.Context, conn net.Conn) ([]byte, error) {
	ctx, watch := progress.Begin(ctx, progress.Patience{Quiet: t.quiet})
	defer watch.End()
	content, err := netboot.ReadFileFunc(ctx, conn, t.loader, watch.Bytes)
	return content, watch.Why(ctx, err)
}

// watched tells when a connection ends.
type watched struct {
	net.Conn
	ended func()
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if err != nil {
		w.ended()
	}
	return n, err
}

// stream asks for workflows over one connection until that is cut, which must not be before the transfers are whole,
// and then once more over another.
func (t *traffic) stream(ctx context.Context, begun func(), whole <-chan struct{}) error {
	cut := make(chan struct{})
	end := sync.OnceFunc(func() { close(cut) })
	client, err := tink.Dial(net.JoinHostPort(t.service, "42113"),
		grpc.WithContextDialer(func(ctx context.Context, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
			return &watched{conn, end}, err
		}))
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	for asked := 0; ; asked++ {
		err := t.call(ctx, client)
		select {
		case <-cut:
			select {
			case <-whole:
			default:
				return fmt.Errorf("the gRPC connection was cut under the transfers, after %d calls: %w", asked, err)
			}
			t.say("the gRPC connection was cut after %d calls", asked)
			return t.again(ctx, client)
		default:
		}
		if err != nil {
			return fmt.Errorf("failed to ask for workflows on an open connection, after %d calls: %w", asked, err)
		}
		begun()
		time.Sleep(200 * time.Millisecond)
	}
}

// again waits until another connection serves.
func (t *traffic) again(ctx context.Context, client *tink.Client) error {
	const pause = 500 * time.Millisecond
	err := progress.Until(ctx, progress.Patience{Quiet: t.quiet}, pause, func(ctx context.Context) error {
		_, err := client.Contexts(ctx, "nobody")
		return err
	})
	if err != nil {
		return fmt.Errorf("failed to ask for workflows anew: %w", err)
	}
	t.say("and another one serves")
	return nil
}

// call asks once for workflows.
func (t *traffic) call(ctx context.Context, client *tink.Client) error {
	ctx, cancel := context.WithTimeout(ctx, t.quiet)
	defer cancel()
	_, err := client.Contexts(ctx, "nobody")
	return err
}

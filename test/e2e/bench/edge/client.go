package edge

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// secure is the client's TLS: nothing is left to choose, so that all candidates do the same.
func secure() *tls.Config {
	return &tls.Config{
		InsecureSkipVerify: true, // the certificate is its own; its signature of the handshake is verified
		ServerName:         "bench",
		MinVersion:         tls.VersionTLS13,
		CurvePreferences:   []tls.CurveID{tls.X25519},
		ClientSessionCache: forgetful{},
	}
}

// forgetful has the client ask for tickets, as clients do, and never use one: every handshake is a full one. nginx
// makes tickets in any case, so stack-proxy must.
type forgetful struct{}

func (forgetful) Get(string) (*tls.ClientSessionState, bool) { return nil, false }
func (forgetful) Put(string, *tls.ClientSessionState)        {}

// handshake makes a TLS connection, and looks whether it is the one that was meant.
func handshake(ctx context.Context, conn net.Conn, config *tls.Config) (*tls.Conn, error) {
	client := tls.Client(conn, config)
	if err := client.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("failed to shake hands: %w", err)
	}
	state := client.ConnectionState()
	if state.CipherSuite != tls.TLS_AES_128_GCM_SHA256 || state.CurveID != tls.X25519 || state.DidResume {
		return nil, fmt.Errorf("failed to compare: the server chose %s, %v, resumed %v",
			tls.CipherSuiteName(state.CipherSuite), state.CurveID, state.DidResume)
	}
	return client, nil
}

// check asks for a file by every way, and compares it.
func (s *site) check(ctx context.Context) error {
	want, err := os.ReadFile(s.path("files/kernel"))
	if err != nil {
		return err
	}
	transport := &http.Transport{TLSClientConfig: secure()}
	defer transport.CloseIdleConnections()
	for _, url := range []string{"http://" + plainAddr, "https://" + ecdsaAddr, "https://" + rsaAddr} {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/kernel", http.NoBody)
		if err != nil {
			return err
		}
		answer, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(answer.Body)
		if err := errors.Join(err, answer.Body.Close()); err != nil {
			return err
		}
		if answer.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
			return fmt.Errorf("%s answered %s with %d bytes that are not the file's", url, answer.Status, len(got))
		}
	}
	return nil
}

// ask connects, says that it wants one file and no more, and returns the connection, on which the answer is to come.
func ask(ctx context.Context, from *net.TCPAddr, addr, file string, config *tls.Config) (*net.TCPConn, error) {
	var dialer net.Dialer
	if from != nil {
		dialer.LocalAddr = from
	}
	dialer.SetMultipathTCP(false)
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	var out io.Writer = conn
	if config != nil {
		if out, err = handshake(ctx, conn, config); err != nil {
			_ = conn.Close()
			return nil, err
		}
	}
	if _, err := fmt.Fprintf(out, "GET /%s HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n", file); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return conn.(*net.TCPConn), nil
}

// scrap is where the kernel would put what it is told to throw away.
var scrap = make([]byte, 1<<20)

// discard has the kernel throw away what arrives, until the end or the deadline, and counts it.
func discard(conn *net.TCPConn, deadline time.Time) (total int64, err error) {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return 0, err
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, err
	}
	for {
		n := 0
		var failure error
		err := raw.Read(func(fd uintptr) bool {
			n, _, failure = unix.Recvfrom(int(fd), scrap, unix.MSG_TRUNC)
			return !errors.Is(failure, unix.EAGAIN)
		})
		switch {
		case err != nil:
			return total, err
		case failure != nil:
			return total, failure
		case n == 0:
			return total, io.EOF
		}
		total += int64(n)
	}
}

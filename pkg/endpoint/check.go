package endpoint

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/tinkerbell/stack/internal/redirect"
)

// Secure makes TLS of a connection to an endpoint; nil where endpoints speak none.
type Secure interface {
	Client(ctx context.Context, conn net.Conn, protocols ...string) (*tls.Conn, error)
	// Name is the name that the endpoint's certificate must be for.
	Name() string
}

// dialer opens connections, by TLS where there is some.
func dialer(secure Secure, protocols ...string) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil || secure == nil {
			return conn, err
		}
		secured, err := secure.Client(ctx, conn, protocols...)
		if err != nil {
			_ = conn.Close()
			return nil, err
		}
		return secured, nil
	}
}

// CheckTCP succeeds if the endpoint takes a connection, and has the right certificate where it speaks TLS.
func CheckTCP(secure Secure) Check {
	dial := dialer(secure)
	return func(ctx context.Context, addr netip.AddrPort) error {
		conn, err := dial(ctx, "tcp", addr.String())
		if err != nil {
			return err
		}
		return conn.Close()
	}
}

// CheckHTTP succeeds if a GET of the path is answered with a code from 200 to 399.
func CheckHTTP(path string, secure Secure) Check {
	if path == "" {
		path = "/"
	}
	scheme, host := "http", ""
	if secure != nil {
		scheme, host = "https", secure.Name()
	}
	client := &http.Client{
		// A new connection each time: a kept one would not notice that the endpoint has stopped listening.
		Transport:     &http.Transport{DisableKeepAlives: true, DialTLSContext: dialer(secure, "http/1.1")},
		CheckRedirect: redirect.None,
	}
	return func(ctx context.Context, addr netip.AddrPort) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, scheme+"://"+addr.String()+path, nil)
		if err != nil {
			return err
		}
		request.Header.Set("User-Agent", "stack-proxy health check")
		request.Host = host
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode < 200 || response.StatusCode > 399 {
			return fmt.Errorf("GET %s was answered with %s", path, response.Status)
		}
		return nil
	}
}

// CheckGRPC succeeds if grpc.health.v1.Health/Check says of the server SERVING, over HTTP/2. The two messages are small
// enough to be written by hand, which spares the program a gRPC library.
func CheckGRPC(secure Secure) Check {
	message := make([]byte, 5) // not compressed, empty: the server as a whole
	var protocols http.Protocols
	scheme, host := "http", ""
	if secure != nil {
		scheme, host = "https", secure.Name()
	}
	protocols.SetUnencryptedHTTP2(secure == nil)
	protocols.SetHTTP2(secure != nil)
	return func(ctx context.Context, addr netip.AddrPort) error {
		transport := &http.Transport{Protocols: &protocols, DialTLSContext: dialer(secure, "h2")}
		defer transport.CloseIdleConnections()
		request, err := http.NewRequestWithContext(ctx, http.MethodPost,
			scheme+"://"+addr.String()+"/grpc.health.v1.Health/Check", bytes.NewReader(message))
		if err != nil {
			return err
		}
		request.Host = host
		request.Header.Set("Content-Type", "application/grpc")
		request.Header.Set("Te", "trailers")
		response, err := transport.RoundTrip(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		answer, err := io.ReadAll(io.LimitReader(response.Body, 1024))
		if err != nil {
			return err
		}
		return servingStatus(response, answer)
	}
}

// servingStatus reads HealthCheckResponse.status, field 1; 1 is SERVING.
func servingStatus(response *http.Response, answer []byte) error {
	code := response.Trailer.Get("Grpc-Status")
	if code == "" {
		code = response.Header.Get("Grpc-Status") // an answer of trailers only
	}
	if response.StatusCode != http.StatusOK || code != "0" {
		return fmt.Errorf("health check was answered with %s, grpc-status %q", response.Status, code)
	}
	if len(answer) < 5 {
		return errors.New("health check was answered with nothing")
	}
	status := uint64(0)
	if body := answer[5:]; len(body) > 1 && body[0] == 1<<3 {
		status, _ = binary.Uvarint(body[1:])
	}
	if status != 1 {
		return fmt.Errorf("health check was answered with status %d, not SERVING (1)", status)
	}
	return nil
}

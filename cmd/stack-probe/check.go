package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/tinkerbell/stack/internal/redirect"
)

// check is one question.
type check struct {
	name string
	url  *url.URL
}

// retry is how long an unanswered datagram waits for its next copy.
const retry = 2 * time.Second

// split takes the list apart at spaces and commas.
func split(list []string) []string {
	return strings.FieldsFunc(strings.Join(list, " "), func(r rune) bool { return r == ' ' || r == ',' || r == '\n' })
}

// parse reads name=scheme://host:port/path.
func parse(text string) (check, error) {
	name, address, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return check{}, fmt.Errorf("%q is not name=scheme://host:port", text)
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Port() == "" {
		return check{}, fmt.Errorf("%q is not name=scheme://host:port", text)
	}
	switch u.Scheme {
	case "http", "https", "tcp", "grpc", "tftp", "dhcp":
	default:
		return check{}, fmt.Errorf("%q: %s is none of http, https, tcp, grpc, tftp, dhcp", text, u.Scheme)
	}
	if u.Scheme == "tftp" && strings.Trim(u.Path, "/") == "" {
		return check{}, fmt.Errorf("%q names no file", text)
	}
	return check{name: name, url: u}, nil
}

func (c check) ask(ctx context.Context) (detail string, err error) {
	switch c.url.Scheme {
	case "http", "https":
		return c.http(ctx)
	case "grpc":
		return c.grpc(ctx)
	case "tftp":
		return c.tftp(ctx)
	case "dhcp":
		return c.dhcp(ctx)
	default:
		return c.tcp(ctx)
	}
}

// tcp connects.
func (c check) tcp(ctx context.Context) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.url.Host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return "connected to " + conn.RemoteAddr().String(), nil
}

// http takes any answer but one that a proxy gives in place of its backend. A query host=name asks for that name, in
// TLS and in the request; with a query file the path is a file that has to be there.
func (c check) http(ctx context.Context) (string, error) {
	u := *c.url
	host, file, method := u.Query().Get("host"), u.Query().Has("file"), http.MethodGet
	if file {
		method = http.MethodHead
	}
	u.RawQuery = ""
	request, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return "", err
	}
	request.Host = host
	transport := &http.Transport{
		// It asks whether the port serves. Who may vouch for its certificate, machines know and the probe does not.
		TLSClientConfig:   &tls.Config{ServerName: host, InsecureSkipVerify: true}, //nolint:gosec // see above
		ForceAttemptHTTP2: true,
	}
	defer transport.CloseIdleConnections()
	client := http.Client{
		Transport:     transport,
		CheckRedirect: redirect.None,
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if file && response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("failed to find file %s: status %s", &u, response.Status)
	}
	switch response.StatusCode {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return "", fmt.Errorf("failed to reach the backend: status %s", response.Status)
	}
	if file {
		return fmt.Sprintf("%s has %d bytes", u.Path, response.ContentLength), nil
	}
	return "status " + response.Status, nil
}

// workflowStream is the call that a machine's agent makes first.
const workflowStream = "/proto.WorkflowService/GetWorkflowContexts"

// grpc makes a call with an empty message over cleartext HTTP/2. Whatever grpc-status comes back, a gRPC server
// gave it.
func (c check) grpc(ctx context.Context) (string, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: &protocols}
	defer transport.CloseIdleConnections()
	emptyMessage := strings.NewReader("\x00\x00\x00\x00\x00")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.url.Host+workflowStream, emptyMessage)
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	request.Header.Set("User-Agent", "stack-probe")
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if kind := response.Header.Get("Content-Type"); !strings.HasPrefix(kind, "application/grpc") {
		return "", fmt.Errorf("failed to find gRPC: status %s, content type %q", response.Status, kind)
	}
	if status := response.Header.Get("Grpc-Status"); status != "" {
		return "grpc-status " + status, nil
	}
	// A stream that is served has begun; its end may be hours away.
	return "stream open", nil
}

// TFTP opcodes (RFC 1350 section 5, RFC 2347).
const (
	tftpRead = 1 + iota
	_
	tftpData
	_
	tftpError
	tftpOptions
)

// tftp asks for a file's size (RFC 2349) and stops there.
func (c check) tftp(ctx context.Context) (string, error) {
	file := strings.TrimPrefix(c.url.Path, "/")
	request := append([]byte{0, tftpRead}, file+"\x00octet\x00tsize\x000\x00"...)
	conn, answer, err := exchange(ctx, c.url.Host, request)
	if err != nil {
		return "", fmt.Errorf("failed to fetch %s: %w", file, err)
	}
	defer conn.Close()
	if len(answer) < 4 {
		return "", fmt.Errorf("failed to fetch %s: answer of %d bytes", file, len(answer))
	}
	switch binary.BigEndian.Uint16(answer) {
	case tftpOptions:
		_, _ = conn.Write([]byte{0, tftpError, 0, 8, 0}) // RFC 2347: no further than this
		return fmt.Sprintf("%s has %s bytes", file, option(answer[2:], "tsize")), nil
	case tftpData:
		_, _ = conn.Write([]byte{0, tftpError, 0, 0, 0})
		return fmt.Sprintf("%s begins with %d bytes", file, len(answer)-4), nil
	case tftpError:
		return "", fmt.Errorf("failed to fetch %s: server says %q", file, strings.TrimRight(string(answer[4:]), "\x00"))
	default:
		return "", fmt.Errorf("failed to fetch %s: not TFTP: % x", file, answer[:2])
	}
}

// option finds a value among names and values that end in zeros.
func option(text []byte, name string) string {
	fields := strings.Split(string(text), "\x00")
	for i := 0; i+1 < len(fields); i += 2 {
		if strings.EqualFold(fields[i], name) {
			return fields[i+1]
		}
	}
	return "an unknown number of"
}

// exchange sends a datagram until there is an answer.
func exchange(ctx context.Context, address string, request []byte) (net.Conn, []byte, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "udp", address)
	if err != nil {
		return nil, nil, err
	}
	answer := make([]byte, 65536)
	for ctx.Err() == nil {
		if _, err := conn.Write(request); err != nil {
			conn.Close()
			return nil, nil, err
		}
		until := time.Now().Add(retry)
		if deadline, ok := ctx.Deadline(); ok && deadline.Before(until) {
			until = deadline
		}
		_ = conn.SetReadDeadline(until)
		n, err := conn.Read(answer)
		if err == nil {
			return conn, answer[:n], nil
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			// "Connection refused" comes by ICMP and may pass, as when the pod has just begun.
			select {
			case <-ctx.Done():
			case <-time.After(time.Until(until)):
			}
		}
	}
	conn.Close()
	return nil, nil, errors.New("no answer")
}

// body reads a short answer whole.
func body(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, http.NoBody)
	if err != nil {
		return "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("failed to get %s: status %s", address, response.Status)
	}
	text, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
	return string(text), err
}

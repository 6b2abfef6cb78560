// Package port asks the ports of a stack once, as a machine that boots would.
package port

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/tinkerbell/stack/internal/redirect"
	"github.com/tinkerbell/stack/pkg/tftp"
)

// Check is one question.
type Check struct {
	Name string
	url  *url.URL
}

// retry is how long an unanswered datagram waits for its next copy.
const retry = 2 * time.Second

// Split takes a list apart at spaces and commas.
func Split(list []string) []string {
	return strings.FieldsFunc(strings.Join(list, " "), func(r rune) bool { return r == ' ' || r == ',' || r == '\n' })
}

// Parse reads name=scheme://host:port/path.
func Parse(text string) (Check, error) {
	name, address, ok := strings.Cut(text, "=")
	if !ok || name == "" {
		return Check{}, fmt.Errorf("%q is not name=scheme://host:port", text)
	}
	u, err := url.Parse(address)
	if err != nil || u.Hostname() == "" || u.Port() == "" {
		return Check{}, fmt.Errorf("%q is not name=scheme://host:port", text)
	}
	switch u.Scheme {
	case "http", "https", "tcp", "grpc", "tftp", "dhcp", "trust":
	default:
		return Check{}, fmt.Errorf("%q: %s is none of http, https, tcp, grpc, tftp, dhcp, trust", text, u.Scheme)
	}
	if u.Scheme == "tftp" && strings.Trim(u.Path, "/") == "" {
		return Check{}, fmt.Errorf("%q names no file", text)
	}
	return Check{Name: name, url: u}, nil
}

// Ask asks, and says what was heard.
func (c Check) Ask(ctx context.Context) (detail string, err error) {
	switch c.url.Scheme {
	case "http", "https":
		return c.http(ctx)
	case "grpc":
		return c.grpc(ctx)
	case "tftp":
		return c.tftp(ctx)
	case "dhcp":
		return c.dhcp(ctx)
	case "trust":
		return c.trust(ctx)
	default:
		return c.tcp(ctx)
	}
}

// tcp connects.
func (c Check) tcp(ctx context.Context) (string, error) {
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", c.url.Host)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	return "connected to " + conn.RemoteAddr().String(), nil
}

// http takes any answer but one that a proxy gives in place of its backend, and one that sends machines to a port of
// the same host that does not answer. A query host=name asks for that name, in TLS and in the request; with a query
// file the path is a file that has to be there. Each other=preset@host:port is where another layout's service would
// answer, which is looked at where the backend does not.
func (c Check) http(ctx context.Context) (string, error) {
	u := *c.url
	host, file, method, others := u.Query().Get("host"), u.Query().Has("file"), http.MethodGet, u.Query()["other"]
	if file {
		method = http.MethodHead
	}
	u.RawQuery = ""
	request, err := http.NewRequestWithContext(ctx, method, u.String(), http.NoBody)
	if err != nil {
		return "", err
	}
	request.Host = host
	transport := unverified(host)
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
		said, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return "", otherLayout(ctx, others, fmt.Errorf("failed to reach the backend: status %s: %s", response.Status,
			bytes.TrimSpace(said)))
	}
	if to, err := response.Location(); err == nil && to.Hostname() == u.Hostname() && to.Port() != u.Port() {
		if err := dial(ctx, to.Host); err != nil {
			return "", fmt.Errorf("it sends machines to %s, which does not answer (Tinkerbell with TLS: "+
				"backends.tinkerbell.tls.secret): %w", to, err)
		}
	}
	if file {
		return fmt.Sprintf("%s has %d bytes", u.Path, response.ContentLength), nil
	}
	return "status " + response.Status, nil
}

// unverified asks whether a port serves. It verifies no certificate: machines know its authority, the doctor does not.
func unverified(host string) *http.Transport {
	return &http.Transport{
		TLSClientConfig:   &tls.Config{ServerName: host, InsecureSkipVerify: true}, //nolint:gosec // see above
		ForceAttemptHTTP2: true,
	}
}

// otherLayout adds to an error which other preset's service answers.
func otherLayout(ctx context.Context, others []string, err error) error {
	for _, other := range others {
		if preset, address, ok := strings.Cut(other, "@"); ok && dial(ctx, address) == nil {
			return fmt.Errorf("%w; %s answers: set preset to %s", err, address, preset)
		}
	}
	return err
}

// dial tells whether a TCP port answers.
func dial(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, retry)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}

// workflowStream is the call that a machine's agent makes first.
const workflowStream = "/proto.WorkflowService/GetWorkflowContexts"

// grpc asks whether a gRPC server answers.
func (c Check) grpc(ctx context.Context) (string, error) {
	return GRPC(ctx, (&net.Dialer{}).DialContext, c.url.Host, false)
}

// GRPC makes a call with an empty message over HTTP/2, in clear text or by TLS, and says what came back. Whatever
// grpc-status that is, a gRPC server gave it.
func GRPC(
	ctx context.Context, dial func(ctx context.Context, network, address string) (net.Conn, error), host string,
	secure bool,
) (string, error) {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(!secure)
	protocols.SetHTTP2(secure)
	transport := &http.Transport{
		Protocols: &protocols, DialContext: dial, ForceAttemptHTTP2: secure,
		// It asks whether the port serves: machines know the authorities of its certificate, the doctor does not.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // see above
	}
	defer transport.CloseIdleConnections()
	scheme := "http"
	if secure {
		scheme = "https"
	}
	emptyMessage := strings.NewReader("\x00\x00\x00\x00\x00")
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, scheme+"://"+host+workflowStream, emptyMessage)
	if err != nil {
		return "", err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	request.Header.Set("User-Agent", "stack-doctor")
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

// tftp asks for a file's size (RFC 2349) and stops there.
func (c Check) tftp(ctx context.Context) (string, error) {
	file := strings.TrimPrefix(c.url.Path, "/")
	addr, err := net.ResolveUDPAddr("udp", c.url.Host)
	if err != nil {
		return "", fmt.Errorf("failed to fetch %s: %w", file, err)
	}
	for {
		answer, err := c.fetch(ctx, file, addr.AddrPort())
		switch {
		case err != nil:
			return "", fmt.Errorf("failed to fetch %s: %w", file, err)
		case answer.Err == nil && answer.Size >= 0:
			return fmt.Sprintf("%s has %d bytes", file, answer.Size), nil
		case answer.Err == nil:
			return fmt.Sprintf("%s begins with %d bytes", file, len(answer.Content)), nil
		case answer.Code >= 0:
			return "", fmt.Errorf("failed to fetch %s: server says %q", file, answer.Message)
		case !errors.Is(answer.Err, tftp.ErrSilent) && !errors.Is(answer.Err, tftp.ErrRefused):
			return "", fmt.Errorf("failed to fetch %s: %w", file, answer.Err)
		}
		select { // the pod may have just begun
		case <-ctx.Done():
			return "", fmt.Errorf("failed to fetch %s: %w", file, answer.Err)
		case <-time.After(poll):
		}
	}
}

// fetch asks once.
func (c Check) fetch(ctx context.Context, file string, server netip.AddrPort) (tftp.Answer, error) {
	conn, err := net.ListenUDP("udp", nil)
	if err != nil {
		return tftp.Answer{}, err
	}
	defer conn.Close()
	server = netip.AddrPortFrom(server.Addr().Unmap(), server.Port())
	return tftp.Read(ctx, conn, server, tftp.Ask{File: file, Size: true}, retry), nil
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

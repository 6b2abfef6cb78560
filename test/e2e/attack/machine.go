package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/tinkerbell/stack/test/e2e/netboot"
	"github.com/tinkerbell/stack/test/e2e/progress"
)

// quiet is for how long nothing may move in a step of a boot; firmware waits longer.
const quiet = 45 * time.Second

// Machine does the steps of a boot again and again, as one client.
type Machine struct {
	dialer net.Dialer
	kept   *http.Client // keeps its connections, as installers do
	stream net.Conn     // open all the time, as tink worker's
}

// NewMachine makes a machine, which has its long connection open.
func NewMachine() (*Machine, error) {
	m := &Machine{dialer: net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 2, 0, 1)}}}
	m.kept = patient(&http.Transport{DialContext: m.dialer.DialContext})
	var err error
	if m.stream, err = m.dialer.Dial("tcp", address(portTCP)); err != nil {
		return nil, err
	}
	return m, nil
}

// Close ends the machine.
func (m *Machine) Close() {
	m.kept.CloseIdleConnections()
	_ = m.stream.Close()
}

// patient is a client that gives a request up when nothing moves.
func patient(transport *http.Transport) *http.Client {
	return &http.Client{Transport: progress.Transport{
		RoundTripper: transport, Patience: progress.Patience{Quiet: quiet},
	}}
}

// Boot does every step once.
func (m *Machine) Boot(ctx context.Context) error {
	fresh := patient(&http.Transport{
		DialContext: m.dialer.DialContext, DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	second := &http.Transport{DialContext: m.dialer.DialContext, Protocols: &protocols}
	defer second.CloseIdleConnections()
	steps := []struct {
		name string
		do   func() error
	}{
		{"TFTP", func() error { return m.tftp(ctx) }},
		{"script", func() error { return get(ctx, fresh, "http://"+address(portHTTP)+"/meta", []byte("metadata")) }},
		{"kernel", func() error { return get(ctx, fresh, "http://"+address(portFiles)+"/kernel", content) }},
		{"metadata", func() error { return get(ctx, m.kept, "http://"+address(portHTTP)+"/meta", []byte("metadata")) }},
		{"TLS", func() error { return get(ctx, fresh, "https://"+address(portTLS)+"/meta", []byte("metadata")) }},
		{"gRPC", func() error { return call(ctx, patient(second)) }},
		{"open stream", func() error { return echo(m.stream) }},
		{"new stream", func() error {
			ctx, cancel := context.WithTimeout(ctx, quiet)
			defer cancel()
			c, err := m.dialer.DialContext(ctx, "tcp", address(portTCP))
			if err != nil {
				return err
			}
			defer c.Close()
			return echo(c)
		}},
		{"healthz", func() error { return get(ctx, fresh, "http://"+address(portAdmin)+"/healthz", []byte("ok\n")) }},
	}
	var failures []error
	for _, step := range steps {
		if err := step.do(); err != nil {
			failures = append(failures, fmt.Errorf("failed to do step %s: %w", step.name, err))
		}
	}
	return errors.Join(failures...)
}

func get(ctx context.Context, client *http.Client, url string, want []byte) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return exchange(client, request, want)
}

func call(ctx context.Context, client *http.Client) error {
	message := []byte{0, 0, 0, 0, 1, 7}
	url := "http://" + address(portGRPC) + "/echo.Echo/Call"
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(message))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/grpc")
	return exchange(client, request, message)
}

func exchange(client *http.Client, request *http.Request, want []byte) error {
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK || !bytes.Equal(got, want) {
		return fmt.Errorf("%s with %d bytes: %.200s", response.Status, len(got), got)
	}
	return nil
}

// echo is one question and one answer.
func echo(c net.Conn) error {
	_ = c.SetDeadline(time.Now().Add(quiet))
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		return err
	}
	got := make([]byte, 6)
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != "hello\n" {
		return fmt.Errorf("got %q", got)
	}
	return nil
}

func (m *Machine) tftp(ctx context.Context) error {
	ctx, watch := progress.Begin(ctx, progress.Patience{Quiet: quiet})
	defer watch.End()
	dialer := net.Dialer{LocalAddr: &net.UDPAddr{IP: net.IPv4(127, 2, 0, 1)}}
	c, err := dialer.DialContext(ctx, "udp", address(portTFTP))
	if err != nil {
		return err
	}
	defer c.Close()
	got, err := netboot.ReadFileFunc(ctx, c, "undionly.kpxe", watch.Bytes)
	if err == nil && len(got) != 100_000 {
		err = fmt.Errorf("got %d bytes", len(got))
	}
	return err
}

package loader

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tinkerbell/stack/pkg/tftp"
)

const (
	// mostSize is how long a loader may be, in bytes; Smee's have 1 MiB at most, its disk images more.
	mostSize = 4 << 20
	// httpFor and tftpFor are how long a read may take, and tftpWait how long an answer to a datagram.
	httpFor, tftpFor = 10 * time.Second, 30 * time.Second
	tftpWait         = time.Second
	// A client's address chooses among endpoints: picks of them find those of a Service.
	picks = 8
)

var (
	errMissing = errors.New("no such file")
	errUnlike  = errors.New("endpoints give different files of the name")
)

// fetcher asks the endpoints of a route.
type fetcher struct {
	pick func(client netip.Addr) (netip.AddrPort, error)
}

// fetch reads a loader from all endpoints by HTTP, or says that they have what is known; where HTTP does not give it,
// from one of them by TFTP. The error wraps errMissing where the server has none, and errUnlike where endpoints
// differ.
func (f fetcher) fetch(ctx context.Context, at, name string, known *Loader) (*Loader, error) {
	endpoints, err := f.endpoints()
	if err != nil {
		return nil, err
	}
	var found *Loader
	for _, endpoint := range endpoints {
		next, err := readHTTP(ctx, endpoint.Addr(), at, name, known)
		switch {
		case errors.Is(err, errMissing) && known == nil:
			return nil, err
		case err != nil:
			data, failed := readTFTP(ctx, endpoint, name)
			if failed != nil {
				return nil, fmt.Errorf("%w (by HTTP: %v)", failed, err) //nolint:errorlint // what TFTP says counts
			}
			next = newLoader(name, data)
		case found != nil && !found.same(next):
			return nil, errUnlike
		}
		found = next
	}
	if found.same(known) {
		return known, nil
	}
	return found, nil
}

// endpoints are those that clients get.
func (f fetcher) endpoints() ([]netip.AddrPort, error) {
	var all []netip.AddrPort
	for i := range byte(picks) {
		endpoint, err := f.pick(netip.AddrFrom4([4]byte{192, 0, 2, i}))
		if err != nil {
			return nil, fmt.Errorf("failed to find endpoint: %w", err)
		}
		if !slices.Contains(all, endpoint) {
			all = append(all, endpoint)
		}
	}
	return all, nil
}

// client follows no redirect, and has no connection left behind: behind a Service the next one may have another end.
var client = &http.Client{
	Transport:     &http.Transport{DisableKeepAlives: true, DisableCompression: true},
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// readHTTP reads a file by HTTP from an endpoint's address. It is what is known where the endpoint says so by its ETag.
func readHTTP(ctx context.Context, addr netip.Addr, at, name string, known *Loader) (*Loader, error) {
	ctx, cancel := context.WithTimeout(ctx, httpFor)
	defer cancel()
	port, below, _ := strings.Cut(strings.TrimPrefix(at, ":"), "/")
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(addr.String(), port), Path: "/" + below}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(name).String(), nil)
	if err != nil {
		return nil, fmt.Errorf("failed to ask for loader: %w", err)
	}
	if known != nil && known.tag != "" {
		request.Header.Set("If-None-Match", known.tag)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to get loader: %w", err)
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotModified && known != nil:
		return known, nil
	case answer.StatusCode == http.StatusNotFound, answer.StatusCode == http.StatusGone:
		return nil, fmt.Errorf("failed to get %s: %w: %s", u.String(), errMissing, answer.Status)
	case answer.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("failed to get %s: %s", u.String(), answer.Status)
	case answer.ContentLength > mostSize:
		return nil, fmt.Errorf("failed to get %s: it has %d bytes", u.String(), answer.ContentLength)
	}
	data, err := io.ReadAll(io.LimitReader(answer.Body, mostSize+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("failed to read loader: %w", err)
	case len(data) == 0 || len(data) > mostSize:
		return nil, fmt.Errorf("failed to read %s: it is empty, or has more than %d bytes", u.String(), mostSize)
	}
	found := newLoader(name, data)
	found.tag = answer.Header.Get("Etag")
	return found, nil
}

// readTFTP reads a file by TFTP, by a name as a machine has it.
func readTFTP(ctx context.Context, endpoint netip.AddrPort, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, tftpFor)
	defer cancel()
	conn, err := new(net.ListenConfig).ListenPacket(ctx, "udp", ":0")
	if err != nil {
		return nil, fmt.Errorf("failed to open socket: %w", err)
	}
	defer conn.Close()
	got := tftp.Read(ctx, conn, endpoint, tftp.Ask{File: name, Block: 1428, Most: mostSize + 1}, tftpWait)
	switch {
	case got.Code == 1: // RFC 1350 section 5: file not found
		return nil, fmt.Errorf("failed to read %s by TFTP: %w: ERROR %d %s", name, errMissing, got.Code, got.Message)
	case got.Err != nil:
		return nil, fmt.Errorf("failed to read %s by TFTP: %w", name, got.Err)
	case !got.Whole:
		return nil, fmt.Errorf("failed to read %s by TFTP: it has more than %d bytes", name, mostSize)
	}
	return got.Content, nil
}

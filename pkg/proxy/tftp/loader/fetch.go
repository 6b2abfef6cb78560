package loader

import (
	"bytes"
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

	"github.com/tinkerbell/stack/pkg/doctor/tftp"
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

// askers are names as two machines have them, of which none can exist: a server that makes a file for each machine, or
// for each trace, gives them two.
var askers = []string{
	"02:00:00:00:00:01/%s",
	"02:00:00:00:00:02/%s-00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
}

// finding is what a comparison finds.
type finding uint8

const (
	alike   finding = iota // one content, by HTTP and by TFTP
	unlike                 // more than one
	missing                // no such file
	silent                 // no answer, or one that is not to be had again at once
)

// answer is why a loader is not served, of which a comparison has found that.
func (f finding) answer() Answer {
	return [...]Answer{alike: Memory, unlike: Differs, missing: Absent, silent: Unreachable}[f]
}

var (
	errMissing = errors.New("no such file")
	errUnlike  = errors.New("the server gives different files of the name")
)

// fetcher asks the endpoints of a route.
type fetcher struct {
	pick func(client netip.Addr) (netip.AddrPort, error)
}

// fetch reads a loader from all endpoints by HTTP. What is not known already is compared with what they give by TFTP;
// that is asked as well where HTTP has none.
func (f fetcher) fetch(ctx context.Context, at, name string, known *Loader) (*Loader, finding, error) {
	endpoints, err := f.endpoints()
	if err != nil {
		return nil, silent, err
	}
	var found *Loader
	for _, endpoint := range endpoints {
		data, err := readHTTP(ctx, endpoint.Addr(), at, name)
		switch {
		case err != nil && known != nil:
			return known.stillBy(ctx, endpoint, err)
		case errors.Is(err, errMissing):
			return nil, missing, err
		case err != nil:
			return nil, silent, err
		case found == nil:
			found = newLoader(name, data)
		case !bytes.Equal(found.data, data):
			return nil, unlike, fmt.Errorf("%w: by HTTP", errUnlike)
		}
	}
	if found.same(known) {
		return known, alike, nil
	}
	for i, asker := range askers {
		endpoint := endpoints[i%len(endpoints)]
		data, err := readTFTP(ctx, endpoint, fmt.Sprintf(asker, name))
		switch {
		case errors.Is(err, errMissing):
			return nil, unlike, fmt.Errorf("%w: TFTP has none: %w", errUnlike, err)
		case err != nil:
			return nil, silent, err
		case !bytes.Equal(found.data, data):
			return nil, unlike, fmt.Errorf("%w: %d bytes by HTTP, %d by TFTP as %s",
				errUnlike, len(found.data), len(data), asker)
		}
	}
	return found, alike, nil
}

// stillBy finds out by TFTP about a loader that HTTP has failed to give.
func (l *Loader) stillBy(ctx context.Context, endpoint netip.AddrPort, byHTTP error) (*Loader, finding, error) {
	data, err := readTFTP(ctx, endpoint, l.name)
	switch {
	case errors.Is(err, errMissing):
		return nil, missing, errors.Join(byHTTP, err)
	case err != nil:
		return nil, silent, errors.Join(byHTTP, err)
	case !bytes.Equal(l.data, data):
		return nil, unlike, byHTTP
	}
	return l, alike, nil
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

// readHTTP reads a file by HTTP from an endpoint's address.
func readHTTP(ctx context.Context, addr netip.Addr, at, name string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, httpFor)
	defer cancel()
	port, below, _ := strings.Cut(strings.TrimPrefix(at, ":"), "/")
	u := url.URL{Scheme: "http", Host: net.JoinHostPort(addr.String(), port), Path: "/" + below}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.JoinPath(name).String(), nil)
	if err != nil {
		return nil, fmt.Errorf("failed to ask for loader: %w", err)
	}
	answer, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("failed to get loader: %w", err)
	}
	defer answer.Body.Close()
	switch {
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
	return data, nil
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
	case got.Code >= 0:
		return nil, fmt.Errorf("failed to read %s by TFTP: %w: ERROR %d %s", name, errMissing, got.Code, got.Message)
	case got.Err != nil:
		return nil, fmt.Errorf("failed to read %s by TFTP: %w", name, got.Err)
	case !got.Whole:
		return nil, fmt.Errorf("failed to read %s by TFTP: it has more than %d bytes", name, mostSize)
	}
	return got.Content, nil
}

package machines

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"

	"github.com/insomniacslk/dhcp/iana"

	"github.com/tinkerbell/stack/test/e2e/installer"
	"github.com/tinkerbell/stack/test/e2e/netboot"
)

// dhcp gets an address, and what a stage of the boot is told with it.
func (m *machine) dhcp(ctx context.Context, stage netboot.Stage) error {
	client := m.segment.Client(m.mac)
	defer func() { _ = client.Close() }()
	client.Again = m.again
	ask := netboot.Ask{Stage: stage, Arch: iana.EFI_X86_64, Moved: func(string) { m.progress.at(1) }}
	copy(ask.UUID[10:], m.mac)
	lease, err := client.Lease(ctx, ask)
	if err != nil {
		return err
	}
	m.lease = lease
	return own("address", lease.Addr.Addr().String(), m.IP.String())
}

// tftp reads the loader.
func (m *machine) tftp(ctx context.Context) error {
	if !m.lease.Next.IsValid() || m.lease.BootFile == "" {
		return errors.New("the lease names no boot file")
	}
	conn, err := m.dial(ctx, "udp", netip.AddrPortFrom(m.lease.Next, 69).String())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	loader := same{what: "loader", want: m.loader}
	err = netboot.ReadBlocks(ctx, conn, m.lease.BootFile, func(block []byte) error {
		if err := loader.take(block); err != nil {
			return err
		}
		m.progress.at(int64(loader.at))
		return nil
	}, m.again)
	if err != nil {
		return err
	}
	return loader.end()
}

// readScript reads the machine's script, which must be about it.
func (m *machine) readScript(ctx context.Context) error {
	text, err := m.get(ctx, m.lease.BootFile)
	if err != nil {
		return err
	}
	if m.script, err = netboot.ParseScript(text); err != nil {
		return err
	}
	if m.config, err = installer.ParseCommandLine(m.script.Args); err != nil {
		return err
	}
	return own("script's machine", m.config.HWAddr.String(), m.MAC)
}

// get reads a small document.
func (m *machine) get(ctx context.Context, url string) (string, error) {
	response, err := m.open(ctx, url)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	text, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil {
		return "", fmt.Errorf("failed to read %s: %w", url, err)
	}
	return string(text), nil
}

func (m *machine) open(ctx context.Context, url string) (*http.Response, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := m.client.Do(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode != http.StatusOK {
		_ = response.Body.Close()
		return nil, fmt.Errorf("%s answers %s", url, response.Status)
	}
	return response, nil
}

// download reads a file and compares it with what it should be.
func (m *machine) download(ctx context.Context, url string, want []byte) error {
	file := same{what: url, want: want}
	if err := m.readFile(ctx, url, file.take); err != nil {
		return err
	}
	return file.end()
}

// readFile reads a file piece by piece. It returns when the server says that this was all.
func (m *machine) readFile(ctx context.Context, url string, take func([]byte) error) error {
	response, err := m.open(ctx, url)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	piece := m.pieces.Get().(*[pieceSize]byte)
	defer m.pieces.Put(piece)
	for got := int64(0); ; {
		n, err := response.Body.Read(piece[:])
		if n > 0 {
			got += int64(n)
			if err := take(piece[:n]); err != nil {
				return err
			}
			m.progress.at(got)
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("failed to read %s after %d bytes: %w", url, got, err)
		}
	}
}

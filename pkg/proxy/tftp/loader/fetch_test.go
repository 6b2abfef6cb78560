package loader

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
)

// tftpServer serves on loopback what give has for a name, in blocks of 512 bytes; nil is ERROR 1.
func tftpServer(t *testing.T, give func(name string) []byte) netip.AddrPort {
	t.Helper()
	conn, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	var running sync.WaitGroup
	running.Go(func() {
		var data []byte
		buffer := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			next := 1
			switch buffer[1] {
			case 1:
				name, _, _ := bytes.Cut(buffer[2:n], []byte{0})
				if data = give(string(name)); data == nil {
					_, _ = conn.WriteToUDPAddrPort([]byte("\x00\x05\x00\x01none\x00"), from)
					continue
				}
			case 4:
				next = int(binary.BigEndian.Uint16(buffer[2:])) + 1
			default:
				continue
			}
			if at := (next - 1) * 512; at <= len(data) {
				block := append([]byte{0, 3, byte(next >> 8), byte(next)}, data[at:min(at+512, len(data))]...)
				_, _ = conn.WriteToUDPAddrPort(block, from)
			}
		}
	})
	t.Cleanup(func() {
		_ = conn.Close()
		running.Wait()
	})
	return conn.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestFetch(t *testing.T) {
	plain := bytes.Repeat([]byte("loader"), 500)
	other := bytes.Repeat([]byte("LOADER"), 500)
	has := func(data []byte) func(string) []byte { return func(string) []byte { return data } }
	gives := func(data []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/ipxe/a.efi" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			_, _ = w.Write(data)
		}
	}
	status := func(code int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(code)
			_, _ = w.Write(plain)
		}
	}
	known := newLoader("a.efi", plain)
	for _, tt := range []struct {
		name  string
		http  http.HandlerFunc
		tftp  func(name string) []byte
		known *Loader
		want  finding
	}{
		{"K01: the same both ways", gives(plain), has(plain), nil, alike},
		{"K02: not by HTTP", status(404), has(plain), nil, missing},
		{"K02: a redirect, as to TLS", status(308), has(plain), nil, silent},
		{"K03: another of the same length", gives(plain), has(other), nil, unlike},
		{"K03: another length", gives(plain), has(plain[:600]), nil, unlike},
		{"K03: not by TFTP", gives(plain), has(nil), nil, unlike},
		{"K04: half of it", gives(plain[:1500]), has(plain), nil, unlike},
		{"K04: a page", gives([]byte("<html>")), has(plain), nil, unlike},
		{"K04: an error", status(500), has(plain), nil, silent},
		{"K04: nothing", gives(nil), has(plain), nil, silent},
		{"K05: another by HTTP, where one is known", gives(other), has(plain), known, unlike},
		{"K06: changed", gives(other), has(other), known, alike},
		{"K06: unchanged, and TFTP is not asked", gives(plain), func(string) []byte {
			t.Error("asked by TFTP")
			return nil
		}, known, alike},
		{"K09: HTTP away, TFTP the same", status(503), has(plain), known, alike},
		{"K09: HTTP away, TFTP another", status(503), has(other), known, unlike},
		{"K10: a file for each machine", gives(plain), func(name string) []byte {
			if strings.HasPrefix(name, "02:00:00:00:00:02/") {
				return other
			}
			return plain
		}, nil, unlike},
		{"K10: a file for each trace", gives(plain), func(name string) []byte {
			if strings.Contains(name, "-00-") {
				return other
			}
			return plain
		}, nil, unlike},
		{"K13: without end", func(w http.ResponseWriter, _ *http.Request) {
			for range 2 * mostSize / len(plain) {
				_, _ = w.Write(plain)
			}
		}, has(plain), nil, silent},
		{"K13: longer than may be, it says", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000000000")
		}, has(plain), nil, silent},
		{"K14: withdrawn", status(404), has(nil), known, missing},
		{"K14: withdrawn by HTTP alone", status(404), has(plain), known, alike},
	} {
		t.Run(tt.name, func(t *testing.T) {
			web := httptest.NewServer(tt.http)
			defer web.Close()
			endpoint := tftpServer(t, tt.tftp)
			_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
			f := fetcher{func(netip.Addr) (netip.AddrPort, error) { return endpoint, nil }}
			found, got, err := f.fetch(t.Context(), ":"+port+"/ipxe/", "a.efi", tt.known)
			if got != tt.want || (err == nil) != (got == alike) || (found != nil) != (got == alike) {
				t.Errorf("found %v, %d, %v; want %d", found, got, err, tt.want)
			}
		})
	}
}

// K07: all endpoints are asked, and have to agree.
func TestFetchAsksAllEndpoints(t *testing.T) {
	one, two := []byte("one"), []byte("two")
	web, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := net.SplitHostPort(web.Addr().String())
	second, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Fatal(err)
	}
	give := two
	for i, l := range []net.Listener{web, second} {
		s := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write([][]byte{one, give}[i])
		})}
		go func() { _ = s.Serve(l) }()
		defer s.Close()
	}
	tftp := tftpServer(t, func(string) []byte { return one })
	f := fetcher{func(client netip.Addr) (netip.AddrPort, error) {
		if client.As4()[3]%2 == 0 {
			return tftp, nil
		}
		return netip.AddrPortFrom(netip.MustParseAddr("127.0.0.2"), tftp.Port()), nil
	}}
	if _, got, err := f.fetch(t.Context(), ":"+port+"/", "a.efi", nil); got != unlike {
		t.Errorf("two that differ: %d, %v", got, err)
	}
	give = one
	if _, got, err := f.fetch(t.Context(), ":"+port+"/", "a.efi", newLoader("a.efi", one)); got != alike {
		t.Errorf("two that agree: %d, %v", got, err)
	}
	f = fetcher{func(netip.Addr) (netip.AddrPort, error) { return netip.AddrPort{}, fmt.Errorf("none") }}
	if _, got, err := f.fetch(context.Background(), ":"+port+"/", "a.efi", nil); got != silent || err == nil {
		t.Errorf("no endpoint: %d, %v", got, err)
	}
}

package loader

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
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
	known.tag = `"1"`
	for _, tt := range []struct {
		name  string
		http  http.HandlerFunc
		tftp  func(name string) []byte
		known *Loader
		want  []byte // nil: none
		fault error  // that the error wraps
	}{
		{"by HTTP", gives(plain), has(nil), nil, plain, nil},
		{"by HTTP, another than is known", gives(other), has(plain), known, other, nil},
		{"not by HTTP", status(404), has(plain), nil, nil, errMissing},
		{"HTTP redirects, as to TLS", status(308), has(plain), nil, plain, nil},
		{"HTTP fails, TFTP has another", status(503), has(other), known, other, nil},
		{"HTTP gives nothing", gives(nil), has(plain), nil, plain, nil},
		{"HTTP gives without end", func(w http.ResponseWriter, _ *http.Request) {
			for range 2 * mostSize / len(plain) {
				_, _ = w.Write(plain)
			}
		}, has(plain), nil, plain, nil},
		{"HTTP says that there is more than may be", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000000000000")
		}, has(plain), nil, plain, nil},
		{"unchanged, by its ETag", func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-None-Match") != known.tag {
				t.Errorf("asked with %q", r.Header.Get("If-None-Match"))
			}
			w.WriteHeader(http.StatusNotModified)
		}, func(string) []byte {
			t.Error("asked by TFTP")
			return nil
		}, known, plain, nil},
		{"withdrawn", status(404), has(nil), known, nil, errMissing},
		{"withdrawn by HTTP alone", status(404), has(plain), known, plain, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			web := httptest.NewServer(tt.http)
			defer web.Close()
			endpoint := tftpServer(t, tt.tftp)
			_, port, _ := net.SplitHostPort(web.Listener.Addr().String())
			f := fetcher{func(netip.Addr) (netip.AddrPort, error) { return endpoint, nil }}
			found, err := f.fetch(t.Context(), ":"+port+"/ipxe/", "a.efi", tt.known)
			if (err == nil) != (tt.want != nil) || found != nil && !bytes.Equal(found.data, tt.want) || tt.fault != nil && !errors.Is(err, tt.fault) {
				t.Errorf("found %v, %v", found, err)
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
	if found, err := f.fetch(t.Context(), ":"+port+"/", "a.efi", nil); !errors.Is(err, errUnlike) {
		t.Errorf("two that differ: %v, %v", found, err)
	}
	give = one
	if found, err := f.fetch(t.Context(), ":"+port+"/", "a.efi", nil); err != nil || found.Size() != 3 {
		t.Errorf("two that agree: %v, %v", found, err)
	}
	f = fetcher{func(netip.Addr) (netip.AddrPort, error) { return netip.AddrPort{}, fmt.Errorf("none") }}
	if _, err := f.fetch(context.Background(), ":"+port+"/", "a.efi", nil); err == nil {
		t.Error("found without an endpoint")
	}
}

package proxy

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/artifacts"
	"github.com/tinkerbell/stack/pkg/record"
	"github.com/tinkerbell/stack/pkg/route"
)

// A small file is served from an event loop, and everything else by net/http. Nobody can tell from the answer, nor from
// the metrics and events.
func TestFilesFromTheLoop(t *testing.T) {
	directory := t.TempDir()
	for name, size := range map[string]int{"script.ipxe": 100, "longest": artifacts.CachedSize, "kernel": artifacts.CachedSize + 1, "none": 0} {
		if err := os.WriteFile(filepath.Join(directory, name), bytes.Repeat([]byte{'x'}, size), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	var told []string
	r := row("r", route.Files, free(t))
	r.Files.Directory = directory
	start(t, Options{Table: table(r), Sink: func(x record.Exchange) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, fmt.Sprintln(x.Kind, x.Outcome, x.Code, x.Bytes, x.Expected, x.Endpoint, x.Offset, x.Method, x.Name, x.Software, x.Reason))
	}})
	// ask is one request on a connection of its own, and what is told of it.
	ask := func(path, headers string) (head string, body []byte, events []string) {
		t.Helper()
		mu.Lock()
		told = nil
		mu.Unlock()
		conn, err := net.Dial("tcp", r.Listen[0].AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\nUser-Agent: a\r\nConnection: close\r\n%s\r\n", path, headers)
		all, err := io.ReadAll(conn)
		if err != nil {
			t.Fatal(err)
		}
		head, rest, _ := strings.Cut(string(all), "\r\n\r\n")
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			mu.Lock()
			events = told
			mu.Unlock()
			if n := len(events); n > 0 && !strings.HasPrefix(events[n-1], fmt.Sprintln(record.HTTP, record.Began)[:3]) {
				return head, []byte(rest), events
			}
			if time.Now().After(deadline) {
				t.Fatalf("nothing is told of %s", path)
			}
		}
	}
	parse := func(head string) *http.Response {
		t.Helper()
		response, err := http.ReadResponse(bufio.NewReader(strings.NewReader(head+"\r\n\r\n")), nil)
		if err != nil {
			t.Fatal(err)
		}
		response.Header.Del("Date")
		return response
	}
	for _, test := range []struct{ path, headers string }{
		{"/script.ipxe", ""}, {"/longest?x=%2e", ""}, {"/%73cript.ipxe", ""}, {"/none", ""},
		{"/script.ipxe", "Accept-Encoding: gzip\r\n"},
		{"/kernel", ""}, {"/absent", ""}, {"/", ""}, {"/%2e%2e/x", ""}, {"/.hidden", ""},
		{"/script.ipxe", "Range: bytes=1-2\r\n"}, {"/script.ipxe", "If-None-Match: *\r\n"},
		{"/script.ipxe", "IF-Modified-Since: Fri, 31 Dec 2100 00:00:00 GMT\r\n"},
	} {
		head, body, events := ask(test.path, test.headers)
		wantHead, wantBody, wantEvents := ask(test.path, test.headers+"Via: 1.1 a\r\n") // which is net/http's
		got, want := parse(head), parse(wantHead)
		if diff := cmp.Diff(want.Header, got.Header); diff != "" || got.Status != want.Status || !bytes.Equal(body, wantBody) {
			t.Errorf("%s %q: %s, %d bytes, want %s, %d bytes (-want +got):\n%s",
				test.path, test.headers, got.Status, len(body), want.Status, len(wantBody), diff)
		}
		if diff := cmp.Diff(wantEvents, events); diff != "" {
			t.Errorf("%s %q: events (-want +got):\n%s", test.path, test.headers, diff)
		}
	}
}

// A tftp route's boot files have the names that firmware writes by HTTP as well, and nothing else is reached by them.
func TestBootFilesByHTTP(t *testing.T) {
	directory := t.TempDir()
	for _, name := range []string{"secret", "boot/x.efi", "boot/EFI/Boot/BOOTX64.EFI", "boot/52:54:00:00:00:01/y.efi"} {
		path := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(name), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files := row("files", route.Files, free(t))
	files.Files.Directory = directory
	boot := row("tftp", route.TFTP, free(t), route.Backend{Host: "127.0.0.1", Port: 9})
	boot.TFTP.Files = directory + "/./boot"
	p := start(t, Options{Table: table(files, boot)})
	get := func(path string) (code int, body string) {
		t.Helper()
		conn, err := net.Dial("tcp", files.Listen[0].AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n", path)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		defer answer.Body.Close()
		all, _ := io.ReadAll(answer.Body)
		return answer.StatusCode, string(all)
	}
	for path, want := range map[string]string{
		"/boot/x.efi": "boot/x.efi", "/boot//x.efi": "boot/x.efi", "//boot/x.efi": "boot/x.efi",
		"/boot/./x.efi": "boot/x.efi", "/boot/%5Cx.efi": "boot/x.efi", `/boot\x.efi`: "boot/x.efi",
		"/BOOT/X.EFI": "boot/x.efi", "/boot/x.efi?": "boot/x.efi", `/boot/\efi\boot\bootx64.efi`: "boot/EFI/Boot/BOOTX64.EFI",
		"/boot/52-54-00-00-00-01/Y.efi": "boot/52:54:00:00:00:01/y.efi", "/boot/52:54:00:00:00:02/x.efi": "boot/x.efi",
		"/secret": "secret",
		"/SECRET": "", "/boot/../boot/../SECRET": "", "/boot/..%5csecret": "", `/boot/..\secret`: "", "/boot/": "", "/boot": "",
		"/boot/%2e%2e/SECRET": "", "/boot/%252e%252e/secret": "", "/boot/..;/secret": "", "/boot/....//secret": "",
		"/boot/%c0%ae%c0%ae/secret": "", "/boot/a/../../etc/passwd": "", "/boot/EFI%5c": "", "/boot/%00": "",
	} {
		code, body := get(path)
		switch {
		case want != "" && (code != http.StatusOK || body != want):
			t.Errorf("%s: got %d %q, want %q", path, code, body, want)
		case want == "" && code != http.StatusNotFound && code != http.StatusBadRequest:
			t.Errorf("%s: got %d %q, want none", path, code, body)
		}
	}
	boot.TFTP.Files = ""
	if err := p.Apply(t.Context(), table(files, boot)); err != nil {
		t.Fatal(err)
	}
	if code, _ := get("/BOOT/X.EFI"); code != http.StatusNotFound {
		t.Errorf("without boot files: got %d", code)
	}
}

// A Raspberry Pi's EEPROM boots by HTTP: the signature of a RAM disk first, then the RAM disk, below HTTP_PATH, each on a
// connection of its own. It follows no redirection, reads nothing without a length, and has been seen to ask for the
// RAM disk again while the first answer is under way. What is not there must be a plain 404: it goes on to its next
// boot mode.
func TestRaspberryPiByHTTP(t *testing.T) {
	directory := t.TempDir()
	want := map[string][]byte{"boot.sig": []byte("5f...\nts: 1650000000\nrsa2048: 00\n"), "boot.img": make([]byte, 3<<20)}
	_, _ = rand.Read(want["boot.img"])
	const path = "boot/1a2b3c4d"
	if err := os.MkdirAll(filepath.Join(directory, path), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range want {
		if err := os.WriteFile(filepath.Join(directory, path, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files := row("files", route.Files, free(t))
	files.Files.Directory = directory
	boot := row("tftp", route.TFTP, free(t), route.Backend{Host: "127.0.0.1", Port: 9})
	boot.TFTP.Files = directory + "/boot"
	start(t, Options{Table: table(files, boot)})
	ask := func(file string) (net.Conn, *http.Response) {
		t.Helper()
		conn, err := net.Dial("tcp", files.Listen[0].AddrPort().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		_, _ = fmt.Fprintf(conn, "GET /%s HTTP/1.1\r\nHost: 192.0.2.2\r\nUser-Agent: rpiboot/1.0 (d03114)\r\n\r\n", file)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		return conn, answer
	}
	gets := func(file string, content []byte) {
		t.Helper()
		_, answer := ask(file)
		defer answer.Body.Close()
		got, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK || answer.ContentLength != int64(len(content)) || !bytes.Equal(got, content) {
			t.Errorf("%s: got %d, a length of %d and %d bytes, want %d: %v",
				file, answer.StatusCode, answer.ContentLength, len(got), len(content), err)
		}
	}
	gets(path+"/boot.sig", want["boot.sig"])
	first, _ := ask(path + "/boot.img")
	gets(path+"/boot.img", want["boot.img"])
	_ = first.Close()
	for _, other := range []string{"net_install/boot.sig", "boot/00000000/boot.sig"} {
		if _, answer := ask(other); answer.StatusCode != http.StatusNotFound || answer.ContentLength < 0 {
			t.Errorf("%s: got %d, a length of %d", other, answer.StatusCode, answer.ContentLength)
		}
	}
}

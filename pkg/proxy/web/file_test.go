package web

import (
	"bytes"
	"crypto/rand"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestFilesAreCorkedMeanwhile looks at the connection while a file is on its way, and behind it: a cork that stays
// would hold small answers back.
func TestFilesAreCorkedMeanwhile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "image")
	content := make([]byte, 24<<20+123) // more than the sockets' buffers hold
	_, _ = rand.Read(content)
	if err := os.WriteFile(name, content, 0o600); err != nil {
		t.Fatal(err)
	}
	certificates := httptest.NewUnstartedServer(nil)
	certificates.StartTLS()
	defer certificates.Close()
	for scheme, secure := range map[string]*tls.Config{
		"http":  nil,
		"https": {Certificates: certificates.TLS.Certificates, NextProtos: []string{"http/1.1"}},
	} {
		t.Run(scheme, func(t *testing.T) {
			r := start(t, Settings{TLS: secure, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				http.ServeFile(w, r, name)
			})})
			r.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{InsecureSkipVerify: true}
			for _, part := range []struct {
				bytes string
				want  []byte
			}{{"bytes=0-", content}, {"bytes=5-9", content[5:10]}, {"bytes=7-", content[7:]}} {
				request, _ := http.NewRequest(http.MethodGet, scheme+"://"+r.Addr().String(), nil)
				request.Header.Set("Range", part.bytes)
				response, err := r.http.Do(request)
				if err != nil {
					t.Fatal(err)
				}
				if len(part.want) > corkFrom {
					awaitCork(t, r.Front.connections, 1)
				}
				got, err := io.ReadAll(response.Body)
				_ = response.Body.Close()
				if err != nil || !bytes.Equal(got, part.want) || response.StatusCode != http.StatusPartialContent {
					t.Errorf("%s: got %d, %d bytes, %v", part.bytes, response.StatusCode, len(got), err)
				}
				awaitCork(t, r.Front.connections, 0)
			}
		})
	}
}

// awaitCork waits until the one connection is corked, or is not.
func awaitCork(t *testing.T, l *connections, want int) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		got := -1
		for c := range l.open.All() {
			served, ok := c.current().(*conn)
			if !ok {
				continue
			}
			raw, _ := served.SyscallConn()
			_ = raw.Control(func(fd uintptr) { got, _ = unix.GetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_CORK) })
		}
		if got == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("TCP_CORK is %d, want %d", got, want)
		}
	}
}

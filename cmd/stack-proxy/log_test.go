package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// programVariable has the test binary be the program.
const programVariable = "STACKPROXY_TEST_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(programVariable) == "" {
		os.Exit(m.Run())
	}
	if err := os.Unsetenv(programVariable); err != nil {
		panic(err)
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// program is a stack-proxy with a route of files, one of a backend, and one of a backend that refuses.
type program struct {
	*exec.Cmd
	t                          *testing.T
	admin, files, web, refused string // addresses
	directory                  string // of the files
	log                        *os.File
	client                     http.Client
	asked                      int
	exited                     chan error
}

// freeAddress is an address where nobody listens: its port is below those that the kernel gives to connections, one of
// which would take it until the program has opened it (net.ipv4.ip_local_port_range).
func freeAddress(t *testing.T) string {
	t.Helper()
	for {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 10000+rand.IntN(22000)))
		if err == nil {
			defer l.Close()
			return l.Addr().String()
		}
	}
}

// startProgram runs the program with a pipe for its log, whose other end is p.log.
func startProgram(t *testing.T, accessLog string, env ...string) *program {
	t.Helper()
	backend := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := io.Copy(io.Discard, r.Body); n > 0 || err != nil {
			_, _ = fmt.Fprint(w, n, " bytes")
			return
		}
		_, _ = io.WriteString(w, "ok")
	})}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = backend.Serve(l) }()
	t.Cleanup(func() { _ = backend.Close() })
	directory := t.TempDir()
	if err := os.WriteFile(filepath.Join(directory, "file"), []byte("ok"), 0o600); err != nil {
		t.Fatal(err)
	}
	p := &program{
		t: t, directory: directory,
		admin: freeAddress(t), files: freeAddress(t), web: freeAddress(t), refused: freeAddress(t),
		client: http.Client{Timeout: time.Minute}, exited: make(chan error, 1),
	}
	routes := filepath.Join(t.TempDir(), "routes.yaml")
	text := fmt.Sprintf(`routes:
- {name: files, protocol: files, listen: %q, files: {directory: %q}, accessLog: %q}
- {name: web, protocol: http, listen: %q, backends: %q, accessLog: %q}
- {name: refused, protocol: http, listen: %q, backends: %q, accessLog: %q}
`, p.files, directory, accessLog, p.web, l.Addr(), accessLog, p.refused, freeAddress(t), accessLog)
	if err := os.WriteFile(routes, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	p.log = reader
	t.Cleanup(func() { _ = reader.Close() })
	p.Cmd = exec.CommandContext(t.Context(), "/proc/self/exe")
	p.Stderr = writer
	p.Env = append(os.Environ(), programVariable+"=1", prefix+"_ROUTES_FILE="+routes, prefix+"_ADMIN_ADDRESS="+p.admin,
		prefix+"_DRAIN_GRACE=0s", prefix+"_DRAIN_TIMEOUT=20s")
	p.Env = append(p.Env, env...)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	_ = writer.Close()
	go func() { p.exited <- p.Wait() }()
	p.until("it is ready", func() bool {
		r, err := p.client.Get("http://" + p.admin + "/readyz")
		if err != nil {
			return false
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	})
	return p
}

func (p *program) until(what string, holds func() bool) {
	p.t.Helper()
	for end := time.Now().Add(time.Minute); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("waited in vain until %s", what)
		}
	}
}

// get asks for a path and expects a code.
func (p *program) get(address, path string, code int) {
	p.t.Helper()
	r, err := p.client.Get("http://" + address + path)
	if err != nil {
		p.t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r.Body)
	_ = r.Body.Close()
	if p.asked++; r.StatusCode != code {
		p.t.Fatalf("%s: got %d, want %d", path, r.StatusCode, code)
	}
}

// metric is the sum of a metric's samples.
func (p *program) metric(name string) (sum float64) {
	p.t.Helper()
	r, err := p.client.Get("http://" + p.admin + "/metrics")
	if err != nil {
		p.t.Fatal(err)
	}
	defer r.Body.Close()
	text, _ := io.ReadAll(r.Body)
	for _, m := range regexp.MustCompile(`(?m)^`+name+`(?:\{.*\})? (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			p.t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// fill asks until lines are lost.
func (p *program) fill() {
	p.t.Helper()
	long := "/" + strings.Repeat("x", 200)
	for range 20 {
		for range 500 {
			p.get(p.web, long, http.StatusOK)
		}
		if p.metric("stack_log_lines_lost_total") > 0 {
			return
		}
	}
	p.t.Fatal("no line is lost")
}

// end tells the program to end, and returns how it did.
func (p *program) end() error {
	p.t.Helper()
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		p.t.Fatal(err)
	}
	select {
	case err := <-p.exited:
		return err
	case <-time.After(time.Minute):
		p.t.Fatal("it does not end")
		return nil
	}
}

// A reader of the log that stops reading holds up no request, and not the end.
func TestStuckLogHoldsUpNothing(t *testing.T) {
	p := startProgram(t, "all")
	p.fill()
	for range 100 {
		p.get(p.files, "/file", http.StatusOK)
		p.get(p.web, "/", http.StatusOK)
		p.get(p.refused, "/", http.StatusBadGateway)
		p.get(p.admin, "/healthz", http.StatusOK)
	}
	if err := p.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// Clients that do nothing wrong have what they ask for beside a log that nobody reads, and no limit touches them: a
// kernel and an initramfs on one connection that reads little at a time, a file that is asked for, loaded in parts, and
// not loaded again; an upload without a length; two hundred machines behind one address.
func TestGoodClientsBesideAStuckLog(t *testing.T) {
	p := startProgram(t, "all")
	const size = 16 << 20
	content := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	if err := os.WriteFile(filepath.Join(p.directory, "image"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	p.fill()
	ask := func(client *http.Client, r *http.Request, code int, want []byte) http.Header {
		t.Helper()
		response, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		got, err := io.ReadAll(response.Body)
		if err != nil || response.StatusCode != code || !bytes.Equal(got, want) {
			t.Fatalf("%s %s: got %d, %d bytes, %v; want %d, %d bytes",
				r.Method, r.URL, response.StatusCode, len(got), err, code, len(want))
		}
		return response.Header
	}
	request := func(method, address, path string, body io.Reader, header ...string) *http.Request {
		r, err := http.NewRequestWithContext(t.Context(), method, "http://"+address+path, body)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		return r
	}
	dials := 0
	little := func(_ context.Context, _, address string) (net.Conn, error) {
		dials++
		c, err := net.Dial("tcp", address)
		if err != nil {
			return nil, err
		}
		return c, c.(*net.TCPConn).SetReadBuffer(64 << 10)
	}
	firmware := &http.Client{Transport: &http.Transport{DialContext: little}}
	defer firmware.CloseIdleConnections()
	tag := ask(firmware, request(http.MethodHead, p.files, "/image", nil), http.StatusOK, nil).Get("Etag")
	for range 2 {
		ask(firmware, request(http.MethodGet, p.files, "/image", nil), http.StatusOK, content)
	}
	ask(firmware, request(http.MethodGet, p.files, "/image", nil, "If-None-Match", tag), http.StatusNotModified, nil)
	if dials != 1 {
		t.Errorf("firmware needed %d connections", dials)
	}
	for from := 0; from < size; from += size / 200 {
		to := min(from+size/200, size)
		part := fmt.Sprintf("bytes=%d-%d", from, to-1)
		r := request(http.MethodGet, p.files, "/image", nil, "Range", part)
		if got := ask(&p.client, r, http.StatusPartialContent, content[from:to]).Get("Etag"); got != tag {
			t.Fatalf("%s has tag %s, want %s", part, got, tag)
		}
	}
	upload := request(http.MethodPost, p.web, "/", io.MultiReader(bytes.NewReader(content)), "Expect", "100-continue")
	ask(&p.client, upload, http.StatusOK, fmt.Append(nil, size, " bytes"))
	var machines sync.WaitGroup
	for range 200 {
		machines.Go(func() {
			c, err := net.Dial("tcp", p.files)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.WriteString(c, "GET /image HTTP/1.1\r\nHost: h\r\nRange: bytes=0-99999\r\nConnection: close\r\n\r\n")
			got, err := io.ReadAll(c)
			if err != nil || !bytes.HasSuffix(got, append([]byte("\r\n\r\n"), content[:100000]...)) {
				t.Errorf("a machine got %d bytes, %v", len(got), err)
			}
		})
	}
	machines.Wait()
	for _, name := range []string{"evicted_total", "refused_total"} {
		if n := p.metric("stack_proxy_admission_" + name); n != 0 {
			t.Errorf("%s is %v", name, n)
		}
	}
	if n := p.metric("stack_proxy_http_refused_total"); n != 0 {
		t.Errorf("%v requests were refused", n)
	}
	if err := p.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// A reader of the log that goes away does not take the program with it.
func TestProgramOutlivesTheReaderOfItsLog(t *testing.T) {
	p := startProgram(t, "all")
	if err := p.log.Close(); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		p.get(p.web, "/", http.StatusOK)
	}
	if p.until("lost lines are counted", func() bool { return p.metric("stack_log_lines_lost_total") >= 100 }); t.Failed() {
		return
	}
	if err := p.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// What was logged while nobody read comes whole and in order, then one line that tells how many lines are missing; and
// the last line is there when the program has ended.
func TestReaderThatIsBackGetsWhatThereWasRoomFor(t *testing.T) {
	p := startProgram(t, "all")
	p.fill()
	lost := p.metric("stack_log_lines_lost_total")
	var read []map[string]any
	var lines atomic.Int64
	done := make(chan error, 1)
	go func() {
		scanner := bufio.NewScanner(p.log)
		for ; scanner.Scan(); lines.Add(1) {
			line := map[string]any{}
			if err := json.Unmarshal(scanner.Bytes(), &line); err != nil {
				done <- fmt.Errorf("%s: %w", scanner.Text(), err)
				return
			}
			read = append(read, line)
		}
		done <- scanner.Err()
	}()
	// There is room again for the lines of the end.
	p.until("the reader has caught up", func() bool { return lines.Load() >= int64(p.asked)-int64(lost) })
	if err := p.end(); err != nil {
		t.Errorf("it ended with %v", err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	requests, told, last := 0, 0.0, time.Time{}
	for _, line := range read {
		switch line["msg"] {
		case "request":
			if requests++; told > 0 {
				t.Error("a line of before comes behind the one that tells of lost ones")
			}
		case "log lines were lost":
			told += line["lines"].(float64)
		}
		at, err := time.Parse(time.RFC3339Nano, line["time"].(string))
		if err != nil || at.Before(last.Add(-time.Second)) {
			t.Fatalf("%v comes behind %v: %v", at, last, err)
		}
		last = at
	}
	if told != lost || requests+int(lost) != p.asked {
		t.Errorf("%d lines of %d requests, and told that %v are lost, of %v", requests, p.asked, told, lost)
	}
	if end := read[len(read)-1]; end["msg"] != "stopped" {
		t.Errorf("the last line is %v", end)
	}
}

// A second SIGTERM ends the program at once, also where nobody reads the log.
func TestSecondSignalEndsAtOnceWithAStuckLog(t *testing.T) {
	p := startProgram(t, "all")
	p.fill()
	open, err := net.Dial("tcp", p.web)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := io.WriteString(open, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	p.until("the request is taken up", func() bool { return p.metric("stack_proxy_http_requests_in_flight") > 0 })
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	p.until("it drains", func() bool {
		r, err := p.client.Get("http://" + p.admin + "/readyz")
		if err != nil {
			return true
		}
		_ = r.Body.Close()
		return r.StatusCode != http.StatusOK
	})
	err = p.end()
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		t.Errorf("it ended with %v", err)
	}
}

// It is ready as long as it takes connections, and no longer: the readiness of a pod that terminates decides whether
// kube-proxy sends to it where there is no other.
func TestReadyAsLongAsConnectionsAreTaken(t *testing.T) {
	p := startProgram(t, "errors", prefix+"_DRAIN_GRACE=1s")
	go func() { _, _ = io.Copy(io.Discard, p.log) }()
	open, err := net.Dial("tcp", p.web) // whose request keeps the program from ending before it was asked
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	if _, err := io.WriteString(open, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	p.until("the request is taken up", func() bool { return p.metric("stack_proxy_http_requests_in_flight") > 0 })
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ready := func() bool {
		r, err := p.client.Get("http://" + p.admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		_ = r.Body.Close()
		return r.StatusCode == http.StatusOK
	}
	leaving := 0
	p.until("it is not ready", func() bool {
		r, err := p.client.Get("http://" + p.files + "/file")
		if err == nil {
			_ = r.Body.Close()
		}
		switch isReady := ready(); {
		case isReady && err != nil:
			t.Fatalf("it is ready, and takes no connection: %v", err)
		case isReady && r.Close:
			leaving++
		case !isReady:
			return true
		}
		return false
	})
	if leaving == 0 {
		t.Error("it was told to end, and was not ready at once")
	}
	p.until("no connection is taken", func() bool {
		c, err := net.Dial("tcp", p.files)
		if err == nil {
			_ = c.Close()
		}
		return err != nil
	})
	_, _ = io.WriteString(open, "123456789")
	if err := <-p.exited; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

// A drain may take as long as the routes say, and not only as long as the rest of the program.
func TestDrainLastsAsLongAsRoutesMay(t *testing.T) {
	p := startProgram(t, "errors")
	go func() { _, _ = io.Copy(io.Discard, p.log) }()
	open, err := net.Dial("tcp", p.web)
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	_ = open.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(open, "POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	p.until("the request is taken up", func() bool { return p.metric("stack_proxy_http_requests_in_flight") > 0 })
	if err := p.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-p.exited:
		t.Fatalf("it ended with %v, and a request was under way", err)
	case <-time.After(5 * time.Second): // that is more than what is added to the routes' time
	}
	_, _ = io.WriteString(open, "123456789")
	response, err := http.ReadResponse(bufio.NewReader(open), nil)
	if err != nil || response.StatusCode != http.StatusOK {
		t.Fatalf("got %v, %v", response, err)
	}
	_ = response.Body.Close()
	if err := <-p.exited; err != nil {
		t.Errorf("it ended with %v", err)
	}
}

package web

import (
	"crypto/tls"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"golang.org/x/net/http2/hpack"
)

// oddTargets are no forms of a target that the method has, or not of a scheme that is served here (RFC 9112, section 3.2).
var oddTargets = []string{
	"foo:http://victim.example/admin", "foo:/victim", "foo://victim/admin", "http:victim", "http:/victim",
	"http:///victim", "http://u@victim/a", "http://u:p@victim/a", "ftp://victim/a", "file:///victim", "victim:80",
	"victim.example", "*", "/victim#a", "/victim#", "/%zz/victim", "/vic%tim%", "HTTPX://victim/",
}

// formsOfRequests are requests for a target by each way to the endpoint.
var formsOfRequests = map[string]string{
	"plain":     "GET TARGET HTTP/1.1\r\nHost: h\r\n\r\n",
	"pool":      "GET TARGET HTTP/1.1\r\nHost: h\r\nVia: 1.1 a\r\n\r\n",
	"head":      "HEAD TARGET HTTP/1.1\r\nHost: h\r\n\r\n",
	"Transport": "POST TARGET HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok",
	"old":       "GET TARGET HTTP/1.0\r\nHost: h\r\n\r\n",
}

// A target that is neither a path nor an http URL, nor OPTIONS' asterisk, is refused on every way, and reaches no
// endpoint: it would pass by a rewritten path, and choose its Host.
func TestOpaqueTargetsAreRefused(t *testing.T) { withAndWithout(t, testOpaqueTargetsAreRefused) }

func testOpaqueTargetsAreRefused(t *testing.T, start starter) {
	addr, received := recorder(t)
	r := start(t, Settings{Pool: pool(addr)})
	for form, text := range formsOfRequests {
		for _, target := range oddTargets {
			for _, before := range []int{0, 2} { // on a connection that a loop has, too
				c := r.talk(t)
				for range before {
					c.ask(t, plainGet)
				}
				if _, err := io.WriteString(c.Conn, strings.Replace(text, "TARGET", target, 1)); err != nil {
					t.Fatal(err)
				}
				if code := codeOf(c); code != http.StatusBadRequest {
					t.Errorf("%s %s behind %d others: got %d", form, target, before, code)
				}
				_ = c.Conn.Close()
			}
		}
	}
	for target, want := range map[string]string{
		"http://other.example/a?b=c": "/a?b=c", "HTTP://other.example": "/", "https://other.example?x": "/?x",
		"//victim/a": "//victim/a", "/": "/",
	} {
		for form, text := range formsOfRequests {
			c := r.talk(t)
			if _, err := io.WriteString(c.Conn, strings.Replace(text, "TARGET", target, 1)); err != nil {
				t.Fatal(err)
			}
			if code := codeOf(c); code != http.StatusOK {
				t.Errorf("%s %s: got %d, want it to arrive as %s", form, target, code, want)
			}
			_ = c.Conn.Close()
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	judge(t, received(), func(got strictRequest) {
		host := got.Fields.Values("Host")[0]
		absolute := strings.Contains(got.Target, "other") || host == "other.example"
		if strings.Contains(host, "victim") || strings.Contains(got.Target, "victim") && got.Target != "//victim/a" ||
			absolute && got.Target != "/a?b=c" && got.Target != "/" && got.Target != "/?x" {
			t.Errorf("%s arrived at %s", got.Target, host)
		}
	})
}

// codeOf is the status of the answer that comes next, 0 where none does.
func codeOf(c talk) int {
	response, err := http.ReadResponse(c.Reader, nil)
	if err != nil {
		return 0
	}
	return response.StatusCode
}

// judge reads what came on each connection as the letter of RFC 9112 has it; what is cut off at the end is not judged.
func judge(t *testing.T, texts []string, each func(strictRequest)) {
	t.Helper()
	for _, text := range texts {
		for rest := []byte(text); len(rest) > 0; {
			request, after, err := readStrictRequest(rest)
			if errors.Is(err, errShort) {
				break
			}
			if err != nil {
				t.Errorf("what left is not of the grammar: %v: %q", err, rest)
				break
			}
			if each(request); len(after) == len(rest) {
				break
			}
			rest = after
		}
	}
}

// The same by HTTP/2, whose path is a field that may hold anything.
func TestPathsOfHTTP2AreThoseOfHTTP1(t *testing.T) {
	certificate := httptest.NewUnstartedServer(nil)
	certificate.StartTLS()
	defer certificate.Close()
	addr, received := recorder(t)
	r := start(t, Settings{Pool: pool(addr), TLS: &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
	}})
	paths := append([]string{"http://victim/a", "/victim a", "/victim\x01", "/victim\x7f", "/victim HTTP/1.1", "victim"},
		oddTargets...)
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		for _, path := range paths {
			body := ""
			if method == http.MethodPost {
				body = "ok"
			}
			code := statusByHTTP2(t, r.Addr().String(), []hpack.HeaderField{
				{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"},
				{Name: ":authority", Value: "h"}, {Name: ":path", Value: path},
			}, body)
			if code != "400" && code != "" { // or the stream is reset
				t.Errorf("%s %q: got %s", method, path, code)
			}
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if got := received(); len(got) > 0 {
		t.Errorf("arrived: %q", got)
	}
}

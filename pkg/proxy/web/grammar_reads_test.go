package web

import (
	"errors"
	"testing"
)

func TestReadStrictRequest(t *testing.T) {
	for text, ok := range map[string]bool{
		"GET / HTTP/1.1\r\nHost: h\r\n\r\n":                                                                      true,
		"GET /a%20b?x=/? HTTP/1.1\r\nHost: h:80\r\nX: \xff\r\n\r\n":                                              true,
		"GET http://h/a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n":                                                      true,
		"OPTIONS * HTTP/1.1\r\nHost: \r\n\r\n":                                                                   true,
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nok":                                              true,
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n":           true,
		"GET * HTTP/1.1\r\nHost: h\r\n\r\n":                                                                      false,
		"GET / HTTP/1.1\nHost: h\r\n\r\n":                                                                        false,
		"GET / HTTP/1.1\rHost: h\r\n\r\n":                                                                        false,
		"GET  / HTTP/1.1\r\nHost: h\r\n\r\n":                                                                     false,
		"GET / HTTP/1.0\r\nHost: h\r\n\r\n":                                                                      false,
		"GET /\" HTTP/1.1\r\nHost: h\r\n\r\n":                                                                    false,
		"GET /%zz HTTP/1.1\r\nHost: h\r\n\r\n":                                                                   false,
		"GET /#a HTTP/1.1\r\nHost: h\r\n\r\n":                                                                    false,
		"GET /\xff HTTP/1.1\r\nHost: h\r\n\r\n":                                                                  false,
		"GET foo:/a HTTP/1.1\r\nHost: h\r\n\r\n":                                                                 false,
		"GET http://u@h/a HTTP/1.1\r\nHost: h\r\n\r\n":                                                           false,
		"GET / HTTP/1.1\r\n\r\n":                                                                                 false,
		"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n":                                                           false,
		"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n":                                                                    false,
		"GET / HTTP/1.1\r\nHost: [a]\r\n\r\n":                                                                    false,
		"GET / HTTP/1.1\r\nHost: :80\r\n\r\n":                                                                    false,
		"GET / HTTP/1.1\r\nHost : h\r\n\r\n":                                                                     false,
		"GET / HTTP/1.1\r\nHost: h\r\nX: a\r\n b\r\n\r\n":                                                        false,
		"GET / HTTP/1.1\r\nHost: h\r\nX: \x00\r\n\r\n":                                                           false,
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +2\r\n\r\nok":                                             false,
		"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n":         false,
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2;x\r\nok\r\n0\r\n\r\n":                 false,
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nokX0\r\n\r\n":                      false,
		"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, identity\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\n": false,
	} {
		_, rest, err := readStrictRequest([]byte(text + "next"))
		if got := err == nil && string(rest) == "next"; got != ok {
			t.Errorf("%q: %v, rest %q", text, err, rest)
		}
		if !ok {
			continue
		}
		for n := range text { // none of its beginnings is whole, or wrong
			if _, _, err := readStrictRequest([]byte(text[:n])); !errors.Is(err, errShort) {
				t.Errorf("%q: %v", text[:n], err)
			}
		}
	}
}

func TestReadStrictResponse(t *testing.T) {
	for text, ok := range map[string]bool{
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok":                            true,
		"HTTP/1.1 200 \r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n":   true,
		"HTTP/1.1 304 Not Modified\r\nContent-Length: 9\r\n\r\n":                    true,
		"HTTP/1.1 204 No Content\r\n\r\n":                                           true,
		"HTTP/1.1 100 Continue\r\n\r\n":                                             true,
		"HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n":                      false,
		"HTTP/1.1 099 X\r\nContent-Length: 2\r\n\r\nok":                             false,
		"HTTP/1.1 1000 X\r\nContent-Length: 2\r\n\r\nok":                            false,
		"HTTP/1.1 200\r\nContent-Length: 2\r\n\r\nok":                               false,
		"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok":                            false,
		"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\nok":       false,
		"HTTP/1.1 200 OK\nContent-Length: 2\r\n\r\nok":                              false,
		"HTTP/1.1 200 OK\r\nContent-Length: 2, 2\r\n\r\nok":                         false,
		"HTTP/1.1 200 OK\r\nX Y: z\r\nContent-Length: 2\r\n\r\nok":                  false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n":      false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\nok\r\n0\r\n\r\n":   false,
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0x2\r\nok\r\n0\r\n\r": false,
	} {
		_, rest, err := readStrictResponse([]byte(text+"next"), "GET", true)
		if got := err == nil && string(rest) == "next"; got != ok {
			t.Errorf("%q: %v, rest %q", text, err, rest)
		}
	}
	r, _, err := readStrictResponse([]byte("HTTP/1.1 200 OK\r\n\r\nbody"), "GET", true)
	if err != nil || !r.UntilClose || r.Body != "body" {
		t.Errorf("got %+v, %v", r, err)
	}
	if _, _, err := readStrictResponse([]byte("HTTP/1.1 200 OK\r\n\r\nbody"), "GET", false); !errors.Is(err, errShort) {
		t.Errorf("got %v", err)
	}
}

package web

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// telling is a gate that tells the endpoint who the client is, as that of tokens does.
type telling struct{}

func (telling) Ready() error { return nil }

func (telling) PassesTarget() func([]byte) bool { return nil }

func (telling) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header["X-Auth-Subject"] = []string{"machine"}
		next.ServeHTTP(w, r)
	})
}

// What a client lists in Connection is removed before anything is set for the endpoint. So it removes neither a token's
// claims nor the client's address, on any way, and trailers say nothing at all.
func TestConnectionCannotRemoveClaims(t *testing.T) {
	withAndWithout(t, testConnectionCannotRemoveClaims)
}

func testConnectionCannotRemoveClaims(t *testing.T, start starter) {
	set := []string{
		"X-Auth-Subject", "X-Forwarded-For", "X-Forwarded-Proto", "X-Forwarded-Host", "X-Real-Ip", "Forwarded", "Via",
	}
	lists := []string{strings.Join(set, ","), strings.ToLower(strings.Join(set, " , ")), "close, " + strings.Join(set, ",")}
	for _, name := range set {
		lists = append(lists, name, "keep-alive,\t"+strings.ToUpper(name)+" ", "keep-alive\r\nConnection: "+name)
	}
	const claims = "X-Auth-Subject: forged\r\nX-Forwarded-For: 192.0.2.66\r\nX-Real-IP: 192.0.2.66\r\nForwarded: for=192.0.2.66\r\n"
	for gated, gate := range map[string]Gate{"no gate": nil, "a gate": telling{}} {
		addr, received := recorder(t)
		r := start(t, Settings{Pool: pool(addr), Gate: gate})
		asked := 0
		for _, list := range lists {
			for _, request := range []string{
				"GET / HTTP/1.1\r\nHost: h\r\nConnection: %s\r\n" + claims + "\r\n",
				"GET / HTTP/1.1\r\nHost: h\r\nTe: trailers\r\nConnection: %s\r\n" + claims + "\r\n",
				"GET / HTTP/1.1\r\nHost: h\r\nUpgrade: x\r\nConnection: upgrade, %s\r\n" + claims + "\r\n",
				"POST / HTTP/1.1\r\nHost: h\r\nConnection: %s\r\nTransfer-Encoding: chunked\r\n" +
					"Trailer: X-Auth-Subject, X-Forwarded-For\r\n" + claims + "\r\n2\r\nok\r\n0\r\n" + claims + "\r\n",
			} {
				c := r.talk(t)
				if _, err := fmt.Fprintf(c.Conn, request, list); err != nil {
					t.Fatal(err)
				}
				if code := codeOf(c); code != http.StatusOK {
					t.Errorf("Connection: %q: got %d", list, code)
				}
				_ = c.Conn.Close()
				asked++
			}
		}
		if err := r.stop(); err != nil {
			t.Error(err)
		}
		seen := 0
		judge(t, received(), func(got strictRequest) {
			seen++
			for name, want := range map[string]string{"X-Auth-Subject": "machine", "X-Forwarded-For": "127.0.0.1",
				"X-Real-IP": "127.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "h"} {
				values := got.Fields.Values(name)
				if gate == nil && name == "X-Auth-Subject" {
					continue
				}
				if len(values) != 1 || values[0] != want {
					t.Errorf("%s: %s is %q, want %q", gated, name, values, want)
				}
			}
			if via := got.Fields.Values("Via"); len(via) != 1 || !strings.Contains(via[0], pseudonym) {
				t.Errorf("Via is %q", via)
			}
			if forwarded := got.Fields.Values("Forwarded"); len(forwarded) != 1 || !strings.Contains(forwarded[0], "127.0.0.1") {
				t.Errorf("Forwarded is %q", forwarded)
			}
			if len(got.Trailers) > 0 || got.Fields.Values("Trailer") != nil {
				t.Errorf("trailers: %q, announced %q", got.Trailers, got.Fields.Values("Trailer"))
			}
			if connection := got.Fields.Values("Connection"); strings.Contains(strings.ToLower(strings.Join(connection, ",")), "x-") {
				t.Errorf("Connection is %q", connection)
			}
		})
		if seen != asked {
			t.Errorf("%s: %d requests arrived of %d", gated, seen, asked)
		}
	}
}

// What a trusted proxy says of its client stays, though that client made it list the header, and other names that are
// listed are for this hop.
func TestConnectionOfATrustedProxy(t *testing.T) {
	addr, received := recorder(t)
	r := start(t, Settings{Pool: pool(addr), Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}})
	for _, more := range []string{"", "Te: trailers\r\n"} {
		c := r.talk(t)
		_, _ = io.WriteString(c.Conn, "GET / HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.7\r\nX-Hop: 1\r\n"+more+
			"Connection: X-Forwarded-For, X-Hop\r\n\r\n")
		if code := codeOf(c); code != http.StatusOK {
			t.Errorf("got %d", code)
		}
		_ = c.Conn.Close()
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	judge(t, received(), func(got strictRequest) {
		if chain := got.Fields.Values("X-Forwarded-For"); len(chain) != 1 || chain[0] != "192.0.2.7, 127.0.0.1" {
			t.Errorf("X-Forwarded-For is %q", chain)
		}
		if hop := got.Fields.Values("X-Hop"); hop != nil {
			t.Errorf("X-Hop passed: %q", hop)
		}
	})
}

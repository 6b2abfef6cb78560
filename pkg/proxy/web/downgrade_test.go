package web

import (
	"bytes"
	"crypto/tls"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Requests that come by HTTP/2 and leave by HTTP/1.1, where a field may hold what only the other's syntax forbids: no
// second request, no second length, nothing about the client but what the proxy says.
func TestSmugglingFromHTTP2(t *testing.T) {
	const victim = "GET /victim HTTP/1.1\r\nHost: h\r\n\r\n"
	type field = hpack.HeaderField
	plain := []field{
		{Name: ":method", Value: "POST"}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: "h"},
		{Name: ":path", Value: "/a"},
	}
	with := func(more ...field) []field { return append(append([]field{}, plain...), more...) }
	instead := func(name, value string) []field {
		all := with()
		for i := range all {
			if all[i].Name == name {
				all[i].Value = value
			}
		}
		return all
	}
	spoofed := "/a HTTP/1.1\r\nHost: h\r\nX-Forwarded-For: 192.0.2.66\r\nContent-Length: 0\r\n\r\n" + victim
	for name, test := range map[string]struct {
		fields  []field
		body    string
		arrives string // yes, no, or either: as one request, before its surplus is seen
	}{
		"plain":                {with(), "abc", "yes"},
		"length that is right": {with(field{Name: "content-length", Value: "3"}), "abc", "yes"},
		"length that is short": {with(field{Name: "content-length", Value: "0"}), victim, "either"},
		"length that is long":  {with(field{Name: "content-length", Value: "300"}), victim, "no"},
		"two lengths": {
			with(field{Name: "content-length", Value: "3"}, field{Name: "content-length", Value: "0"}), victim, "no",
		},
		"no number": {with(field{Name: "content-length", Value: "+3"}), "abc", "either"},
		"chunked":   {with(field{Name: "transfer-encoding", Value: "chunked"}), "0\r\n\r\n" + victim, "no"},
		"chunked and a length": {
			with(field{Name: "transfer-encoding", Value: "chunked"}, field{Name: "content-length", Value: "5"}),
			"0\r\n\r\n", "no",
		},
		"connection":             {with(field{Name: "connection", Value: "x-forwarded-for"}), "", "no"},
		"upgrade":                {with(field{Name: "upgrade", Value: "h2c"}), "", "no"},
		"line break in value":    {with(field{Name: "x", Value: "a\r\nX-Forwarded-For: 192.0.2.66"}), "", "no"},
		"line feed in value":     {with(field{Name: "x", Value: "a\nContent-Length: 0\n\n" + victim}), "abc", "no"},
		"NUL in value":           {with(field{Name: "x", Value: "a\x00b"}), "", "no"},
		"line break in name":     {with(field{Name: "x: y\r\nx-forwarded-for", Value: "192.0.2.66"}), "", "no"},
		"colon in name":          {with(field{Name: "x-forwarded-for: 192.0.2.66\r\ny", Value: ""}), "", "no"},
		"capitals in name":       {with(field{Name: "X-Forwarded-For", Value: "192.0.2.66"}), "", "no"},
		"request in path":        {instead(":path", spoofed), "", "no"},
		"space in path":          {instead(":path", "/a HTTP/1.1"), "", "no"},
		"path without slash":     {instead(":path", "a"), "", "no"},
		"empty path":             {instead(":path", ""), "", "no"},
		"request in method":      {instead(":method", "GET /victim HTTP/1.1\r\nX:"), "", "no"},
		"space in method":        {instead(":method", "GET /victim"), "", "no"},
		"request in authority":   {instead(":authority", "h\r\nX-Forwarded-For: 192.0.2.66"), "", "no"},
		"slash in authority":     {instead(":authority", "h/victim"), "", "no"},
		"pseudo-field afterward": {with(field{Name: "x", Value: "y"}, field{Name: ":path", Value: "/victim"}), "", "no"},
		"two paths":              {with(field{Name: ":path", Value: "/victim"}), "", "no"},
		"own claim":              {with(field{Name: "x-forwarded-for", Value: "192.0.2.66"}), "abc", "yes"},
	} {
		t.Run(name, func(t *testing.T) {
			certificate := httptest.NewUnstartedServer(nil)
			certificate.StartTLS()
			defer certificate.Close()
			addr, received := recorder(t)
			r := start(t, Settings{Pool: pool(addr), TLS: &tls.Config{
				MinVersion: tls.VersionTLS12, Certificates: certificate.TLS.Certificates, NextProtos: []string{"h2", "http/1.1"},
			}})
			answered := askByHTTP2(t, r.Addr().String(), test.fields, test.body)
			if err := r.stop(); err != nil {
				t.Error(err)
			}
			requests := 0
			for _, text := range received() {
				for rest := text; rest != ""; requests++ {
					if strings.Contains(strings.SplitN(rest, "\r\n", 2)[0], "victim") {
						t.Errorf("smuggled: %q", rest)
					}
					rest = oneRequest(t, rest)
				}
			}
			if requests > 1 || test.arrives == "yes" && (requests != 1 || !answered) {
				t.Errorf("%d requests, answered: %v", requests, answered)
			}
			if test.arrives == "no" && answered {
				t.Errorf("the endpoint's answer reached the client")
			}
		})
	}
}

// askByHTTP2 sends one request as it is told to, and tells whether the endpoint answered it.
func askByHTTP2(t *testing.T, addr string, fields []hpack.HeaderField, body string) (answered bool) {
	t.Helper()
	return statusByHTTP2(t, addr, fields, body) == "200"
}

// statusByHTTP2 sends one request as it is told to. Its status is empty where the stream or the connection was ended.
func statusByHTTP2(t *testing.T, addr string, fields []hpack.HeaderField, body string) string {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, f := range fields {
		_ = encoder.WriteField(f)
	}
	_, _ = conn.Write([]byte(http2.ClientPreface))
	framer := http2.NewFramer(conn, conn)
	framer.AllowIllegalWrites = true
	_ = framer.WriteSettings()
	_ = framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: 1, BlockFragment: block.Bytes(), EndHeaders: true, EndStream: body == "",
	})
	if body != "" {
		_ = framer.WriteData(1, true, []byte(body))
	}
	decoder := hpack.NewDecoder(4096, nil)
	for {
		frame, err := framer.ReadFrame()
		if err != nil {
			return ""
		}
		switch f := frame.(type) {
		case *http2.HeadersFrame:
			got, err := decoder.DecodeFull(f.HeaderBlockFragment())
			if err != nil {
				t.Fatal(err)
			}
			for _, each := range got {
				if each.Name == ":status" {
					return each.Value
				}
			}
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return ""
		}
	}
}

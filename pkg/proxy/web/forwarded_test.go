package web

import (
	"net/http"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What Hegel is told about the caller. What the peer says of it counts only where the peer is trusted.
func TestForwarded(t *testing.T) {
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	type want struct{ chain, real, proto, host, forwarded string }
	tests := map[string]struct {
		peer   string
		header http.Header
		want   want
	}{
		"plain": {"192.0.2.7", nil, want{"192.0.2.7", "192.0.2.7", "http", "svc:50061",
			`for=192.0.2.7;proto=http;host="svc:50061"`}},
		"plain IPv6": {"2001:db8::7", nil, want{"2001:db8::7", "2001:db8::7", "http", "svc:50061",
			`for="[2001:db8::7]";proto=http;host="svc:50061"`}},
		"spoofed": {"192.0.2.7", http.Header{
			"X-Forwarded-For": {"192.0.2.8"}, "X-Real-Ip": {"192.0.2.8"}, "Forwarded": {"for=192.0.2.8"},
			"X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"evil"},
		}, want{"192.0.2.7", "192.0.2.7", "http", "svc:50061", `for=192.0.2.7;proto=http;host="svc:50061"`}},
		"behind a trusted proxy": {"10.1.1.1", http.Header{
			"X-Forwarded-For": {"192.0.2.9"}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Host": {"metal.example"},
		}, want{"192.0.2.9, 10.1.1.1", "192.0.2.9", "https", "metal.example",
			`for=192.0.2.9, for=10.1.1.1;proto=https;host="metal.example"`}},
		"a chain in several lines": {"10.1.1.1", http.Header{"X-Forwarded-For": {"192.0.2.1, 192.0.2.9", "10.2.2.2"}},
			want{"192.0.2.1, 192.0.2.9, 10.2.2.2, 10.1.1.1", "192.0.2.9", "http", "svc:50061",
				`for=192.0.2.1, for=192.0.2.9, for=10.2.2.2, for=10.1.1.1;proto=http;host="svc:50061"`}},
		"ports and brackets go": {"fd00::1", http.Header{"X-Forwarded-For": {"[2001:db8::9]:4711, 192.0.2.9:80"}},
			want{"2001:db8::9, 192.0.2.9, fd00::1", "192.0.2.9", "http", "svc:50061",
				`for="[2001:db8::9]", for=192.0.2.9, for="[fd00::1]";proto=http;host="svc:50061"`}},
		"nothing left of garbage": {"10.1.1.1", http.Header{"X-Forwarded-For": {"192.0.2.8, unknown, 192.0.2.9"}},
			want{"192.0.2.9, 10.1.1.1", "192.0.2.9", "http", "svc:50061",
				`for=192.0.2.9, for=10.1.1.1;proto=http;host="svc:50061"`}},
		"strange scheme": {"10.1.1.1", http.Header{"X-Forwarded-Proto": {"javascript"}},
			want{"10.1.1.1", "10.1.1.1", "http", "svc:50061", `for=10.1.1.1;proto=http;host="svc:50061"`}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			out := http.Header{}
			in := &http.Request{Host: "svc:50061", Header: test.header}
			newForwardedHeaders(in, netip.MustParseAddr(test.peer), trusted).set(out)
			got := want{out.Get("X-Forwarded-For"), out.Get("X-Real-Ip"), out.Get("X-Forwarded-Proto"),
				out.Get("X-Forwarded-Host"), out.Get("Forwarded")}
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(want{})); diff != "" {
				t.Error(diff)
			}
			for header, values := range out {
				if len(values) != 1 {
					t.Errorf("%s has %d lines, and the backends read one", header, len(values))
				}
			}
		})
	}
}

func FuzzForwarded(f *testing.F) {
	f.Add("192.0.2.1, 10.0.0.1:80", "host")
	f.Add("[2001:db8::1]:80,, ,unknown,::ffff:192.0.2.1", "a\"b\\")
	trusted := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	peer := netip.MustParseAddr("10.0.0.1")
	f.Fuzz(func(t *testing.T, line, host string) {
		out := http.Header{}
		in := &http.Request{Host: host, Header: http.Header{"X-Forwarded-For": {line}}}
		newForwardedHeaders(in, peer, trusted).set(out)
		chain := parseChain(out.Values("X-Forwarded-For"))
		if len(chain) == 0 || chain[len(chain)-1] != peer {
			t.Errorf("%q became %q, which does not end with the peer", line, out.Get("X-Forwarded-For"))
		}
		if real, err := netip.ParseAddr(out.Get("X-Real-Ip")); err != nil || real.Zone() != "" {
			t.Errorf("%q: X-Real-IP is %q", line, out.Get("X-Real-Ip"))
		}
	})
}

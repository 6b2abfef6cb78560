package syslog

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tinkerbell/stack/pkg/proxy/datagram"
)

var client = netip.MustParseAddr("192.0.2.7")

func TestRewrite(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"RFC 3164", "<34>Oct 11 22:14:15 mymachine su: 'su root' failed", "<34>1 - 192.0.2.7 su - - - 'su root' failed"},
		{"RFC 3164 with pid", "<30>Oct  1 22:14:15 hook dockerd[412]: up", "<30>1 - 192.0.2.7 dockerd 412 - - up"},
		{"no host, busybox", "<13>Nov 20 10:00:00 init: started", "<13>1 - 192.0.2.7 init - - - started"},
		{"no time, iPXE", "<14>node1 ipxe: Opening", "<14>1 - 192.0.2.7 ipxe - - - Opening"},
		{"tag only", "<14>ipxe: Opening", "<14>1 - 192.0.2.7 ipxe - - - Opening"},
		{"RFC 3339 time, rsyslog", "<13>2026-11-20T10:00:00.123456+00:00 node1 app: x",
			"<13>1 2026-11-20T10:00:00.123456+00:00 192.0.2.7 app - - - x"},
		{"no tag", "<13>hello world", "<13>1 - 192.0.2.7 - - - - hello world"},
		{"a colon is no tag", "<13>see http://x/y", "<13>1 - 192.0.2.7 - - - - see http://x/y"},
		{"no priority", "panic: oops", "<13>1 - 192.0.2.7 - - - - panic: oops"},
		{"impossible priority", "<192>x", "<13>1 - 192.0.2.7 - - - - <192>x"},
		{"JSON", `<13>app: {"a":1}`, `<13>1 - 192.0.2.7 app - - - {"a":1}`},
		{"no JSON", `<13>app: {x} y`, `<13>1 - 192.0.2.7 app - - -  {x} y`},
		{"RFC 5424", "<165>1 2003-10-11T22:14:15.003Z host evntslog 17 ID47 - text",
			"<165>1 2003-10-11T22:14:15.003Z 192.0.2.7 evntslog 17 ID47 - text"},
		{"structured data moves into the text",
			`<13>1 2026-11-20T10:00:00Z h root - - [timeQuality tzKnown="1" q="\"]"] hi`,
			`<13>1 2026-11-20T10:00:00Z 192.0.2.7 root - - - [timeQuality tzKnown="1" q="\"]"] hi`},
		{"RFC 5424 without text", "<13>1 - - - - - -", "<13>1 - 192.0.2.7 - - - - "},
		{"nanoseconds", "<13>1 2026-11-20T10:00:00.123456789+00:00 h a - - - x", "<13>1 - 192.0.2.7 a - - - x"},
		{"RFC 5424, broken", "<13>1 2026-11-20T10:00:00Z h a - - [x y",
			"<13>1 - 192.0.2.7 - - - - 1 2026-11-20T10:00:00Z h a - - [x y"},
		{"empty", "", "<13>1 - 192.0.2.7 - - - - "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := string(Parse([]byte(tt.in)).Append(nil, client))
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("rewritten (-want +got):\n%s", diff)
			}
		})
	}
}

// smeeReads applies what Smee v0.15.2 demands of a message: a version, five fields, a time that it can parse, and
// no structured data.
func smeeReads(b []byte) (host string, ok bool) {
	end := bytes.IndexByte(b, '>')
	if end < 2 || end > 4 || b[0] != '<' || !bytes.HasPrefix(b[end+1:], []byte("1 ")) {
		return "", false
	}
	fields := bytes.SplitN(b[end+3:], []byte(" "), 6)
	if len(fields) != 6 || !bytes.HasPrefix(fields[5], []byte("- ")) {
		return "", false
	}
	if at := string(fields[0]); at != "-" {
		if len(at) > 32 {
			return "", false
		}
		if _, err := time.Parse("2006-01-02T15:04:05.999999Z07:00", at); err != nil {
			return "", false
		}
	}
	return string(fields[1]), true
}

func FuzzRewrite(f *testing.F) {
	f.Fuzz(func(t *testing.T, b []byte) {
		out := Parse(b).Append(nil, client)
		host, ok := smeeReads(out)
		if !ok || host != client.String() {
			t.Fatalf("Smee would not read %q, made of %q", out, b)
		}
		if len(out) > datagram.MaxSize {
			t.Fatalf("%d bytes do not fit into a datagram", len(out))
		}
		m := Parse(b)
		if len(b) < 60_000 && (!bytes.HasSuffix(b, m.Text) || !bytes.HasSuffix(out, m.Text)) {
			t.Fatalf("the text %q of %q is not the end of %q", m.Text, b, out)
		}
		if again := Parse(out).Append(nil, client); !bytes.Equal(again, out) {
			t.Fatalf("a second proxy makes %q of %q", again, out)
		}
	})
}

func TestRewriteDoesNotAllocate(t *testing.T) {
	in := []byte("<30>Oct  1 22:14:15 hook dockerd[412]: up and running")
	buf := make([]byte, 0, 2048)
	if n := testing.AllocsPerRun(100, func() { buf = Parse(in).Append(buf[:0], client) }); n != 0 {
		t.Errorf("got %v allocations a message, want none", n)
	}
}

func BenchmarkRewrite(b *testing.B) {
	in := []byte("<30>Oct  1 22:14:15 hook dockerd[412]: up and running")
	buf := make([]byte, 0, 2048)
	b.ReportAllocs()
	for b.Loop() {
		buf = Parse(in).Append(buf[:0], client)
	}
}

// TestTimesThatRFC5424Forbids: a strict receiver would refuse the message.
func TestTimesThatRFC5424Forbids(t *testing.T) {
	for at, want := range map[string]bool{
		"2026-11-20T10:00:00Z": true, "2026-11-20T10:00:00.123456+23:59": true, "2026-11-20T10:00:00-05:30": true,
		"2026-11-20T10:00:00,5Z": false, "2026-11-20T1:00:00Z": false, "2026-11-20T10:00:00+24:00": false,
		"2026-11-20T10:00:00.Z": false, "2026-11-20T10:00:00": false, "Z": false, "2026-11-20T1:00:00.5Z": false,
	} {
		if validTime([]byte(at)) != want {
			t.Errorf("%s: got %v", at, !want)
		}
	}
}

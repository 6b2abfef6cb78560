package record

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/tinkerbell/stack/pkg/boot"
)

// told is an event with its texts.
type told struct {
	Event boot.Event
	Texts string
}

func toldOf(e *boot.Event) told {
	var texts []string
	for f := boot.VendorClass; f <= boot.Reason; f++ {
		texts = append(texts, string(e.Text(f)))
	}
	return told{*e, strings.Join(texts, "|")}
}

// TestBootsEvents has the event of each kind of exchange: its fields, and its texts, cut.
func TestBootsEvents(t *testing.T) {
	long := strings.Repeat("x", 1000)
	begin := time.Unix(1_700_000_000, 0)
	client, endpoint := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddrPort("198.51.100.2:69")
	base := Exchange{
		Route: long, Port: 8080, Client: client, Endpoint: endpoint, Begin: begin, Took: time.Second, Code: 165,
		Bytes: 2, Expected: 3, Offset: 4, Method: long, Name: long, Software: long, Message: long, Reason: long,
		Resent: 5, BlockSize: 6, Window: 7,
	}
	event := boot.Event{
		At: begin.Add(time.Second).UnixNano(), Took: time.Second, Client: boot.Bytes(client),
		Endpoint: boot.Bytes(endpoint.Addr()), Port: 69, AskedPort: 8080, Status: 165, Bytes: 2, Expected: 3, Offset: 4,
		Resent: 5, Block: 6, Window: 7,
	}
	texts := func(name, agent, message, method, place, reason int) string {
		return strings.Join([]string{
			"", "", "", long[:name], long[:agent], long[:message], long[:method], long[:place], long[:reason],
		}, "|")
	}
	most := texts(160, 64, 64, 12, 24, 48)
	tests := map[string]struct {
		change func(*Exchange)
		want   func(*boot.Event)
		texts  string
		line   bool
	}{
		"request": {
			change: func(x *Exchange) { x.Kind = HTTP },
			want:   func(e *boot.Event) { e.Kind, e.Outcome = boot.HTTP, boot.Done },
		},
		"torn connection": {
			change: func(x *Exchange) { x.Kind, x.Outcome = Stream, Torn },
			want:   func(e *boot.Event) { e.Kind, e.Outcome = boot.Stream, boot.Torn },
		},
		"transfer that goes on": {
			change: func(x *Exchange) { x.Kind, x.Outcome, x.Took = TFTP, Began, 0 },
			want: func(e *boot.Event) {
				e.Kind, e.Outcome, e.At, e.Took = boot.TFTP, boot.Began, begin.UnixNano(), 0
			},
		},
		"refused request": {
			change: func(x *Exchange) { x.Kind, x.Outcome, x.Endpoint = HTTP, Refused, netip.AddrPort{} },
			want: func(e *boot.Event) {
				e.Kind, e.Outcome, e.Endpoint, e.Port = boot.HTTP, boot.Refused, [16]byte{}, 0
			},
		},
		"nobody answers": {
			change: func(x *Exchange) { x.Kind, x.Outcome = TFTP, NoServer },
			want:   func(e *boot.Event) { e.Kind, e.Outcome = boot.TFTP, boot.NoServer },
		},
		"line": {
			change: func(x *Exchange) { x.Kind, x.Name, x.Method = Syslog, "", "" },
			want: func(e *boot.Event) {
				e.Kind, e.Outcome, e.Status, e.Priority = boot.Syslog, boot.Passed, 0, 165
			},
			texts: texts(0, 48, 256, 0, 24, 48), line: true,
		},
		"nobody takes a line": {
			change: func(x *Exchange) {
				x.Kind, x.Outcome, x.Endpoint, x.Name, x.Method = Syslog, NoServer, netip.AddrPort{}, "", ""
			},
			want: func(e *boot.Event) {
				e.Kind, e.Outcome, e.Status, e.Priority = boot.Syslog, boot.NoServer, 0, 165
				e.Endpoint, e.Port = [16]byte{}, 0
			},
			texts: texts(0, 48, 256, 0, 24, 48), line: true,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			x, want := base, told{event, most}
			test.change(&x)
			test.want(&want.Event)
			if test.texts != "" {
				want.Texts = test.texts
			}
			var got, lines []told
			NewBoots(func(e *boot.Event) { got = append(got, toldOf(e)) },
				func(e *boot.Event) { lines = append(lines, toldOf(e)) }).Record(x)
			if test.line {
				got, lines = lines, got
			}
			if diff := cmp.Diff([]told{want}, got, cmpopts.IgnoreUnexported(boot.Event{})); diff != "" || len(lines) > 0 {
				t.Errorf("%d in the other queue (-want +got):\n%s", len(lines), diff)
			}
		})
	}
}

// TestFloodsAreBounded: refusals at each port, and ordinary requests of each client.
func TestFloodsAreBounded(t *testing.T) {
	events := 0
	b := NewBoots(func(*boot.Event) { events++ }, nil)
	base := Exchange{Kind: Stream, Port: 443, Begin: time.Unix(1_700_000_000, 0)}
	const flood = 10 * boot.AllowanceRate
	at := netip.MustParseAddrPort("192.0.2.1:80")
	for _, step := range []struct {
		change func(*Exchange)
		want   int
	}{
		{func(x *Exchange) { x.Outcome = Refused }, boot.AllowanceRate},
		{func(x *Exchange) { x.Outcome = NoServer }, 0}, // of the same second
		{func(x *Exchange) { x.Outcome, x.Port = Refused, 444 }, boot.AllowanceRate},
		{func(x *Exchange) { x.Outcome, x.Begin = NoServer, x.Begin.Add(time.Second) }, boot.AllowanceRate},
		{func(x *Exchange) { x.Outcome, x.Endpoint = NoServer, at }, flood},
		{func(x *Exchange) { x.Outcome = Torn }, flood},
		{func(x *Exchange) { x.Outcome = Began }, flood},
		{func(*Exchange) {}, flood},
		{func(x *Exchange) { x.Kind, x.Code = HTTP, 200 }, clientBurst},
		{func(x *Exchange) { x.Kind, x.Code, x.Client = HTTP, 200, at.Addr() }, clientBurst},
		{func(x *Exchange) { x.Kind, x.Code = HTTP, 404 }, flood},
		{func(x *Exchange) { x.Kind, x.Code, x.Bytes = HTTP, 200, LongAnswer }, flood},
		{func(x *Exchange) { x.Kind, x.Code, x.Expected = HTTP, 200, LongAnswer }, flood},
		{func(x *Exchange) { x.Kind, x.Outcome = HTTP, Torn }, flood},
	} {
		x := base
		step.change(&x)
		events = 0
		for range flood {
			b.Record(x)
		}
		if events != step.want {
			t.Errorf("%+v: %d of %d have events, want %d", x, events, flood, step.want)
		}
	}
	if want := uint64(2 * (flood - clientBurst)); b.Spared() != want {
		t.Errorf("%d spared, want %d", b.Spared(), want)
	}
}

// TestRecordAllocatesNothing for a request, as long as its texts may be.
func TestRecordAllocatesNothing(t *testing.T) {
	queue := boot.NewQueue(16)
	sink := Sink(NewBoots(queue.Put, nil).Record)
	path := []byte(strings.Repeat("x", 10_000))
	x := Exchange{Client: netip.MustParseAddr("192.0.2.7"), Begin: time.Unix(1_700_000_000, 0)}
	if n := testing.AllocsPerRun(1000, func() {
		x.Name = Text(path)
		sink.Record(x)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

package boot

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"net/netip"
	"reflect"
	"testing"
	"time"
)

// full is an event with something in every field.
func full() Event {
	e := Event{
		At: 1795300000_123456789, Took: 1500 * time.Millisecond, Kind: DHCPReply, Outcome: Dropped, DHCP: 5, V6: true,
		MAC: [6]byte{0x52, 0x54, 0, 0x5e, 0, 1}, UUID: [16]byte{1, 2, 3, 15: 16}, XID: 0xdeadbeef,
		HasArch: true, Arch: 7, Secs: 300, Lease: math.MaxUint32,
		Client: addr("192.0.2.7"), Given: addr("2001:db8::7"), Requested: addr("192.0.2.8"), Server: addr("192.0.2.1"),
		Next: addr("192.0.2.2"), Relay: addr("192.0.2.3"), Endpoint: addr("198.51.100.4"), Port: 7171,
		AskedPort: 80, Status: 404, Bytes: math.MaxUint64, Expected: 1 << 40, Resent: 3, Block: 1468, Window: 4,
		Offset: 1 << 33, Priority: 191,
	}
	for f := range fields {
		SetText(&e, f, 64, "text "+string('a'+rune(f)))
	}
	return e
}

func addr(s string) [16]byte { return Bytes(netip.MustParseAddr(s)) }

// A field that is added to Event and not to its encoding fails here.
func TestFullHasEveryField(t *testing.T) {
	v := reflect.ValueOf(full())
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("%s is not set", v.Type().Field(i).Name)
		}
	}
}

// TestVersionChangesWithTheFields: whoever changes what is sent changes the version, and then this.
func TestVersionChangesWithTheFields(t *testing.T) {
	e := full()
	sum := sha256.Sum256(e.AppendBinary(nil))
	if got := hex.EncodeToString(sum[:8]); version != 3 || got != "653df75b759ccb94" {
		t.Errorf("version %d: %s", version, got)
	}
}

func TestBinaryKeepsEverything(t *testing.T) {
	largest := Event{At: -1, Took: math.MinInt64, Kind: 1, UUID: [16]byte{1}, MAC: [6]byte{1}, HasArch: true, Arch: 0xffff}
	largest.XID, largest.Secs, largest.Lease, largest.Resent = 1<<32-1, 1<<16-1, 1<<32-1, 1<<32-1
	largest.Port, largest.AskedPort, largest.Status, largest.Block, largest.Window = 65535, 65535, 65535, 65535, 65535
	largest.Bytes, largest.Expected, largest.Offset, largest.Priority = 1<<64-1, 1<<64-1, 1<<64-1, 255
	for _, a := range []*[16]byte{
		&largest.Client, &largest.Given, &largest.Requested, &largest.Server, &largest.Next, &largest.Relay, &largest.Endpoint,
	} {
		*a = [16]byte{255, 15: 255}
	}
	SetText(&largest, VendorClass, TextRoom, bytes.Repeat([]byte{0xff}, TextRoom))
	var stream []byte
	events := []Event{full(), {Kind: Syslog}, largest, {At: 5, Kind: HTTP, HasArch: true}}
	for i, want := range events {
		b := want.AppendBinary(nil)
		if len(b) > MaxBinary {
			t.Errorf("event %d takes %d bytes, more than %d", i, len(b), MaxBinary)
		}
		var got Event
		if rest, err := got.Decode(b); err != nil || len(rest) > 0 || got != want {
			t.Errorf("event %d: got %+v, %d bytes left, %v", i, got, len(rest), err)
		}
		for n := range b {
			if _, err := got.Decode(b[:n]); err == nil {
				t.Errorf("event %d: %d of %d bytes were taken for all", i, n, len(b))
			}
			if got != (Event{}) {
				t.Fatalf("event %d: not empty after an error", i)
			}
		}
		stream = append(stream, b...)
	}
	for i := range events {
		var got Event
		var err error
		if stream, err = got.Decode(stream); err != nil || got != events[i] {
			t.Fatalf("event %d of the stream: %v", i, err)
		}
	}
}

// request is an event such as most are.
func request() Event {
	e := Event{At: time.Now().UnixNano(), Took: time.Second, Kind: HTTP, Outcome: Done, Status: 200, Bytes: 9 << 20,
		Expected: 9 << 20, Client: addr("192.0.2.7"), Endpoint: addr("198.51.100.4"), Port: 7171, AskedPort: 80}
	SetText(&e, File, 128, "/vmlinuz")
	return e
}

func TestBinaryIsCompact(t *testing.T) {
	e := request()
	if b := e.AppendBinary(nil); len(b) > 104 {
		t.Errorf("%d bytes for a request", len(b))
	}
}

func FuzzDecode(f *testing.F) {
	e := full()
	b := e.AppendBinary(nil)
	f.Add(b)
	b = (&Event{Kind: Syslog}).AppendBinary(nil)
	f.Add(b)
	f.Add([]byte{})
	f.Add(append([]byte{version, 1, 1, 1}, bytes.Repeat([]byte{0xff}, 400)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e Event
		rest, err := e.Decode(b)
		if err != nil {
			if e != (Event{}) || rest != nil {
				t.Fatal("something is left of what is no event")
			}
			return
		}
		for f := range fields {
			_ = Clean(e.Text(f))
		}
		again := e.AppendBinary(nil)
		if len(again) > MaxBinary {
			t.Fatalf("%d bytes, more than %d", len(again), MaxBinary)
		}
		var second Event
		if rest, err := second.Decode(again); err != nil || len(rest) != 0 || second != e {
			t.Fatalf("%+v became %+v: %v", e, second, err)
		}
	})
}

func BenchmarkAppendBinary(b *testing.B) {
	for name, e := range map[string]Event{"full": full(), "request": request()} {
		b.Run(name, func(b *testing.B) {
			room := make([]byte, 0, MaxBinary)
			b.ReportAllocs()
			for b.Loop() {
				room = e.AppendBinary(room[:0])
			}
		})
	}
}

func BenchmarkDecode(b *testing.B) {
	for name, e := range map[string]Event{"full": full(), "request": request()} {
		b.Run(name, func(b *testing.B) {
			encoded := e.AppendBinary(nil)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := e.Decode(encoded); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
